package topo

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// WriteText prints the advice for people: what contradicts first, then a line for each GPU and port, then the variables in a form that a shell takes.
func (a *Advice) WriteText(w io.Writer) error {
	t := &adviceText{}
	t.contradictions(a.Contradictions)
	t.gpus(a.GPUs)
	t.nics(a.NICs)
	t.settings(a.Settings)
	for _, n := range a.Notes {
		t.wrapped("note: ", "      ", n)
	}
	_, err := io.WriteString(w, t.b.String())
	return err
}

type adviceText struct{ b strings.Builder }

func (t *adviceText) line(format string, args ...any) {
	t.b.WriteString(strings.TrimRight(fmt.Sprintf(format, args...), " ") + "\n")
}

// wrapped prints a text of at most drawWidth columns, later lines indented.
func (t *adviceText) wrapped(head, indent, text string) {
	line := head
	for i, word := range strings.Fields(text) {
		if i > 0 && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > drawWidth {
			t.line("%s", line)
			line = indent + word
			continue
		}
		if i > 0 {
			line += " "
		}
		line += word
	}
	t.line("%s", line)
}

func (t *adviceText) contradictions(list []Contradiction) {
	if len(list) == 0 {
		return
	}
	t.line("AGAINST THIS NODE IN THE PRESENT ENVIRONMENT")
	for _, c := range list {
		t.wrapped("  "+c.Variable+"="+c.Value+": ", "      ", c.Text)
		t.wrapped("    → ", "      ", c.Fix)
	}
	t.line("")
}

func (t *adviceText) gpus(list []GPUAdvice) {
	if len(list) == 0 {
		return
	}
	t.line("GPU AND ITS NIC")
	wide := len("none")
	for i := range list {
		wide = max(wide, len(list[i].name()))
	}
	for i := range list {
		v := &list[i]
		nic := v.name()
		if nic == "" {
			nic = "none"
		}
		t.wrapped(fmt.Sprintf("  %-6s %-*s  ", v.GPU, wide, nic), strings.Repeat(" ", 11+wide), v.Reason+" ["+string(v.Confidence)+"]")
		switch {
		case v.Command != "":
			t.wrapped(strings.Repeat(" ", 11+wide), strings.Repeat(" ", 13+wide), v.Command)
		case v.CPUs != "":
			t.wrapped(strings.Repeat(" ", 11+wide), strings.Repeat(" ", 13+wide), "cores near it: "+v.CPUs+" (NUMA node not given)")
		default:
			t.wrapped(strings.Repeat(" ", 11+wide), strings.Repeat(" ", 13+wide), "cores near it: unknown")
		}
	}
	t.line("")
}

func (v *GPUAdvice) name() string {
	if v.NIC == "" || v.Port == nil {
		return v.NIC
	}
	return fmt.Sprintf("%s:%d", v.NIC, *v.Port)
}

func (t *adviceText) nics(list []NICAdvice) {
	if len(list) == 0 {
		return
	}
	t.line("PORTS")
	wide := 0
	names := make([]string, len(list))
	for i, n := range list {
		names[i] = n.NIC
		if n.Port != nil {
			names[i] += fmt.Sprintf(":%d", *n.Port)
		}
		wide = max(wide, len(names[i]))
	}
	for i, n := range list {
		word := "leave"
		if n.Use {
			word = "use"
		}
		text := n.Reason
		if n.Use && n.GIDText != "" {
			text += "; GID "
			if n.GIDIndex != nil {
				text += fmt.Sprintf("%d: ", *n.GIDIndex)
			}
			text += n.GIDText
		}
		t.wrapped(fmt.Sprintf("  %-5s  %-*s  ", word, wide, names[i]), strings.Repeat(" ", 11+wide), text)
	}
	t.line("")
}

func (t *adviceText) settings(list []Setting) {
	t.line("VARIABLES (lines without # can be pasted)")
	for _, s := range list {
		switch {
		case s.Value == nil:
			t.line("  # %s: leave it unset", s.Variable)
		case s.When != "":
			t.wrapped(fmt.Sprintf("  # %s=%s only where ", s.Variable, *s.Value), "  #   ", s.When)
		default:
			t.line("  export %s=%s", s.Variable, *s.Value)
		}
		t.wrapped("  #   ", "  #   ", s.Reason+" ["+string(s.Confidence)+"]")
	}
}
