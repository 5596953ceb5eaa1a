package ncclenv

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"sort"
	"strings"
)

// readJSON takes settings from docker inspect, Kubernetes objects, and lists or maps of variables, whatever surrounds them. Objects of a list at the
// top, or in "items", are hosts or containers of their own.
func readJSON(text []byte, name string) ([]*Source, error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var doc any
	if err := dec.Decode(&doc); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	var parts []any
	switch top := doc.(type) {
	case []any:
		if slices.ContainsFunc(top, isContainer) {
			parts = top
		}
	case map[string]any:
		if items, ok := top["items"].([]any); ok {
			parts = items
		}
	}
	if parts == nil {
		parts = []any{doc}
	}
	var out []*Source
	for i, p := range parts {
		label := name
		if len(parts) > 1 {
			label = fmt.Sprintf("%s[%d]", name, i)
			if own := ownName(p); own != "" {
				label = own
			}
		}
		c := newCollector(label, "json", true)
		c.walk(p, name, 0)
		if src := c.finish(); len(src.Settings) > 0 || len(parts) == 1 {
			out = append(out, src)
		}
	}
	if len(out) == 0 {
		out = append(out, newCollector(name, "json", true).finish())
	}
	return out, nil
}

// isContainer tells an object with parts of its own from a {"name":…,"value":…} of a plain list.
func isContainer(v any) bool {
	m, ok := v.(map[string]any)
	if !ok {
		return false
	}
	for _, inner := range m {
		switch inner.(type) {
		case map[string]any, []any:
			return true
		}
	}
	return false
}

func ownName(v any) string {
	m, _ := v.(map[string]any)
	if meta, ok := m["metadata"].(map[string]any); ok {
		m = meta
	}
	for _, key := range []string{"Name", "name", "hostname", "Id"} {
		if s, ok := m[key].(string); ok && s != "" {
			return strings.TrimPrefix(s, "/")
		}
	}
	return ""
}

func (c *collector) walk(v any, from string, depth int) {
	if depth > 100 {
		return
	}
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			if s, ok := item.(string); ok {
				if n, value, ok := strings.Cut(s, "="); ok {
					c.set(Setting{Name: n, Value: value, From: from})
				}
				continue
			}
			c.walk(item, from, depth+1)
		}
	case map[string]any:
		if n, ok := v["name"].(string); ok {
			if value, ok := scalar(v["value"]); ok {
				c.set(Setting{Name: n, Value: value, From: from})
			}
		}
		keys := make([]string, 0, len(v))
		for k := range v {
			keys = append(keys, k)
		}
		sort.Strings(keys) // so that equal names always end the same way
		for _, k := range keys {
			if value, ok := scalar(v[k]); ok {
				c.set(Setting{Name: k, Value: value, From: from})
				continue
			}
			c.walk(v[k], from, depth+1)
		}
	}
}

func scalar(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case json.Number:
		return v.String(), true
	case bool:
		return fmt.Sprint(v), true
	}
	return "", false
}
