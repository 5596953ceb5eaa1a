package ncclenv

import (
	"cmp"
	"fmt"
	"slices"
)

// Severity of a finding.
const (
	Fault = "fault"   // it does not do what it says, or will do harm
	Odd   = "warning" // it works, but may mislead or cost
	Note  = "note"    // worth knowing
)

// Finding is one thing that is wrong, or may be, with the settings.
type Finding struct {
	ID       string `json:"id"`
	Severity string `json:"severity"`
	Name     string `json:"name,omitempty"`
	Value    string `json:"value,omitempty"`
	From     string `json:"from,omitempty"` // the environment, or a file
	Line     int    `json:"line,omitempty"`
	Host     string `json:"host,omitempty"` // when several were read
	Text     string `json:"text"`
	Advice   string `json:"advice,omitempty"`
}

// where says where something stands, as file:line.
func where(from string, line int) string {
	if line > 0 {
		return fmt.Sprintf("%s:%d", from, line)
	}
	return from
}

func rank(severity string) int { return slices.Index([]string{Fault, Odd, Note}, severity) }

// Sort puts the worst first, and findings of one variable together.
func Sort(found []Finding) {
	slices.SortStableFunc(found, func(a, b Finding) int {
		return cmp.Or(rank(a.Severity)-rank(b.Severity), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Host, b.Host), cmp.Compare(a.Line, b.Line), cmp.Compare(a.ID, b.ID))
	})
}

// HasFault tells whether anything is wrong for certain.
func HasFault(found []Finding) bool {
	return slices.ContainsFunc(found, func(f Finding) bool { return f.Severity == Fault })
}

// about begins a finding about a setting.
func (s *Setting) about(severity, id, format string, args ...any) Finding {
	return Finding{ID: id, Severity: severity, Name: s.Name, Value: s.Value, From: s.From, Line: s.Line, Text: fmt.Sprintf(format, args...)}
}

// do adds what to do about it.
func (f Finding) do(format string, args ...any) Finding {
	f.Advice = fmt.Sprintf(format, args...)
	return f
}
