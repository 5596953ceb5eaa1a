package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"strconv"
	"strings"

	"github.com/commprobe/commprobe/bench/result"
)

// WriteJSON writes run as one indented JSON document with a newline at the end. Numbers are numbers, absent is left out or null, lists that
// are there in every document are [] when empty, and a list of numbers stays on one line. An empty Schema is filled in. Errors: another
// schema than result.Schema; a NaN or an infinity, which JSON has not, with its path (rows[3].out_of_place.time_us), before anything is
// written; those of w.
func WriteJSON(w io.Writer, run *result.Run) error {
	if run == nil {
		return errors.New("json: no run")
	}
	doc := withoutNulls(*run)
	if doc.Schema == "" {
		doc.Schema = result.Schema
	}
	if doc.Schema != result.Schema {
		return fmt.Errorf("json: schema %q, but this version writes %q", doc.Schema, result.Schema)
	}
	if path, v := findNonFinite(reflect.ValueOf(doc), ""); path != "" {
		return fmt.Errorf("json: %s is %v, not a number that can be written", path, v)
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(doc); err != nil {
		return fmt.Errorf("json: %w", err)
	}
	if _, err := w.Write(joinNumberLists(buf.Bytes())); err != nil {
		return fmt.Errorf("json: %w", err)
	}
	return nil
}

// ReadJSON reads one document of WriteJSON. Unknown fields are ignored, since later versions of the same schema may add some. Errors: no JSON,
// anything after the document, no schema or an unknown one; then the run is nil.
func ReadJSON(r io.Reader) (*result.Run, error) {
	dec := json.NewDecoder(r)
	var raw json.RawMessage
	if err := dec.Decode(&raw); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, errors.New("json: empty, need a result document")
		}
		return nil, fmt.Errorf("json: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("json: more text after the document, at byte %d", dec.InputOffset())
	}
	// The schema first: with another one, a complaint about some field's type would mislead.
	var head struct {
		Schema *string `json:"schema"`
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		return nil, fmt.Errorf("json: not a result document: %w", err)
	}
	if head.Schema == nil {
		return nil, fmt.Errorf("json: no schema field: not a result document of commprobe (schema %q)", result.Schema)
	}
	if *head.Schema != result.Schema {
		return nil, fmt.Errorf("json: schema %q is unknown; this version reads %q", *head.Schema, result.Schema)
	}
	run := new(result.Run)
	if err := json.Unmarshal(raw, run); err != nil {
		return nil, fmt.Errorf("json: %w", err)
	}
	return run, nil
}

// withoutNulls replaces the nil lists of fields that every document has, so that a reader such as jq can iterate without asking.
func withoutNulls(run result.Run) result.Run {
	fill(&run.Command)
	fill(&run.Config.Collectives)
	fill(&run.Config.Types)
	fill(&run.Config.Ops)
	fill(&run.Environment.Hosts)
	fill(&run.Environment.Libraries)
	fill(&run.Ranks)
	if run.Environment.Env == nil {
		run.Environment.Env = map[string]string{}
	}
	rows := make([]result.Row, len(run.Rows))
	for i, row := range run.Rows {
		row.OutOfPlace, row.InPlace = filledHalf(row.OutOfPlace), filledHalf(row.InPlace)
		rows[i] = row
	}
	run.Rows = rows
	modes := make([]result.Modes, len(run.Modes))
	for i, m := range run.Modes {
		fill(&m.Groups)
		modes[i] = m
	}
	run.Modes = modes
	return run
}

func fill[T any](list *[]T) {
	if *list == nil {
		*list = []T{}
	}
}

func filledHalf(h *result.Half) *result.Half {
	if h == nil || h.Ranks != nil {
		return h
	}
	filled := *h
	fill(&filled.Ranks)
	return &filled
}

// findNonFinite returns the path, in JSON names, of the first NaN or infinity below v; "" if there is none.
func findNonFinite(v reflect.Value, path string) (string, float64) {
	switch v.Kind() {
	case reflect.Float64, reflect.Float32:
		if f := v.Float(); math.IsNaN(f) || math.IsInf(f, 0) {
			return path, f
		}
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			return findNonFinite(v.Elem(), path)
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			if p, f := findNonFinite(v.Index(i), path+"["+strconv.Itoa(i)+"]"); p != "" {
				return p, f
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			field := v.Type().Field(i)
			if !field.IsExported() {
				continue
			}
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if path != "" {
				name = path + "." + name
			}
			if p, f := findNonFinite(v.Field(i), name); p != "" {
				return p, f
			}
		}
	}
	return "", 0
}

// joinNumberLists puts each list that holds only numbers on one line: thousands of samples with a line each would bury the rest.
func joinNumberLists(doc []byte) []byte {
	out := make([]byte, 0, len(doc))
	inString := false
	for i := 0; i < len(doc); i++ {
		c := doc[i]
		out = append(out, c)
		switch {
		case inString && c == '\\':
			i++
			out = append(out, doc[i])
		case c == '"':
			inString = !inString
		case !inString && c == '[':
			end := bytes.IndexAny(doc[i+1:], `]"[{`)
			if end > 0 && doc[i+1+end] == ']' && !bytes.ContainsAny(doc[i+1:i+1+end], "tfn") {
				out = append(out, bytes.Join(bytes.Fields(doc[i+1:i+1+end]), []byte(" "))...)
				i += end
			}
		}
	}
	return out
}
