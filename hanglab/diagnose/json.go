package diagnose

import (
	"bytes"
	"encoding/json"
	"io"
)

// MarshalJSON writes every list as a list, also an empty one: who reads the document need not tell null from [].
func (v *Verdict) MarshalJSON() ([]byte, error) {
	type plain Verdict // without this method
	p := plain(*v)
	p.Ranks, p.Sizes, p.Next = list(p.Ranks), list(p.Sizes), list(p.Next)
	p.Evidence, p.Against = list(p.Evidence), list(p.Against)
	p.Alternatives = list(v.others())
	for i := range p.Alternatives {
		p.Alternatives[i].Ranks = list(p.Alternatives[i].Ranks)
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // "send 0->3" and "<module>" stay readable
	err := e.Encode(&p)
	return b.Bytes(), err
}

func list[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

// WriteJSON writes the verdict as one document.
func (v *Verdict) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
