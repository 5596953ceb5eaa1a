package ncclenv

import (
	"regexp"
	"slices"
	"strings"
)

// word is one word of a shell command, quotes taken off.
type word struct {
	text string
	open bool // something in it is still to be replaced by the shell
	end  bool // ; & | and the like: the end of a command
}

// shellWords cuts a line into words as sh does, as far as it matters here. It replaces nothing.
func shellWords(line string) []word {
	var out []word
	var b strings.Builder
	in, open := false, false
	flush := func() {
		if in {
			out = append(out, word{text: b.String(), open: open})
		}
		b.Reset()
		in, open = false, false
	}
	for i := 0; i < len(line); i++ {
		switch ch := line[i]; ch {
		case ' ', '\t', '\r':
			flush()
		case ';', '&', '|', '(', ')', '\n':
			flush()
			out = append(out, word{text: string(ch), end: true})
		case '#':
			if !in {
				return out
			}
			b.WriteByte(ch)
		case '\'':
			in = true
			end := strings.IndexByte(line[i+1:], '\'')
			if end < 0 {
				end, open = len(line)-i-1, true // goes on in the next line
			}
			b.WriteString(line[i+1 : i+1+end])
			i += end + 1
		case '"':
			in = true
			i++
			for ; i < len(line) && line[i] != '"'; i++ {
				if line[i] == '\\' && i+1 < len(line) && strings.IndexByte(`"\$`+"`", line[i+1]) >= 0 {
					i++
				} else if line[i] == '$' || line[i] == '`' {
					open = true
				}
				b.WriteByte(line[i])
			}
			open = open || i >= len(line)
		case '\\':
			in = true
			if i++; i < len(line) {
				b.WriteByte(line[i])
			}
		default:
			in = true
			open = open || ch == '$' || ch == '`'
			b.WriteByte(ch)
		}
	}
	flush()
	return out
}

var assignment = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]*)=([\s\S]*)$`)

// script reads shell and batch scripts and Dockerfiles.
type script struct {
	c        *collector
	name     string
	allOut   bool               // set -a: every assignment is exported
	exported map[string]bool    // export NAME
	pending  map[string]Setting // assigned and not exported so far
	exports  bool               // the script uses export at all
}

func readScript(kept []scriptLine, name string) *Source {
	sc := &script{c: newCollector(name, "script", true), name: name, exported: map[string]bool{}, pending: map[string]Setting{}}
	for _, l := range kept {
		text := strings.TrimSpace(l.text)
		if rest, ok := strings.CutPrefix(text, "#SBATCH"); ok {
			sc.options(shellWords(rest), l.n)
			continue
		}
		words := shellWords(text)
		for len(words) > 0 {
			end := slices.IndexFunc(words, func(w word) bool { return w.end })
			if end < 0 {
				end = len(words)
			}
			sc.command(words[:end], l.n)
			words = words[min(end+1, len(words)):]
		}
	}
	sc.unexported()
	return sc.c.finish()
}

func (sc *script) fault(id, name string, line int, text, advice string) {
	if Interesting(name) {
		sc.c.src.Found = append(sc.c.src.Found, Finding{ID: id, Severity: Fault, Name: name, From: sc.name, Line: line, Text: text, Advice: advice})
	}
}

// command reads one command: assignments in front, export and its relatives, or options of a launcher.
func (sc *script) command(words []word, line int) {
	if len(words) == 0 {
		return
	}
	switch first := words[0].text; {
	case first == "export" || first == "declare" || first == "typeset":
		sc.exports = true
		sc.export(words[1:], line)
		return
	case first == "setenv" && len(words) > 2 || first == "ENV" && len(words) > 2 && !strings.Contains(words[1].text, "="):
		sc.c.set(Setting{Name: words[1].text, Value: words[2].text, Open: words[2].open, From: sc.name, Line: line})
		return
	case first == "unset":
		for _, w := range words[1:] {
			sc.c.unset(w.text)
		}
		return
	case first == "set" && len(words) > 1:
		sc.allOut = sc.allOut || words[1].text == "-a" || len(words) > 2 && words[2].text == "allexport"
		return
	case first == "ENV" || first == "env":
		words = words[1:]
		for len(words) > 0 && sc.assign(words[0], line, true) {
			words = words[1:]
		}
	}
	front := 0
	for front < len(words) && assignment.MatchString(words[front].text) {
		front++
	}
	for _, w := range words[:front] {
		sc.assign(w, line, front < len(words) || sc.allOut)
	}
	if front < len(words) {
		sc.spaced(words[front:], line)
		sc.options(words[front:], line)
	}
}

// assign takes NAME=value; false where the word is none. Without visible, only the shell itself sees it.
func (sc *script) assign(w word, line int, visible bool) bool {
	m := assignment.FindStringSubmatch(w.text)
	if m == nil {
		return false
	}
	s := Setting{Name: m[1], Value: m[2], Open: w.open, From: sc.name, Line: line}
	if !visible && !sc.exported[s.Name] {
		if Interesting(s.Name) && len(sc.pending) < 1000 {
			sc.pending[s.Name] = s
		}
		return true
	}
	sc.c.set(s)
	return true
}

func (sc *script) export(words []word, line int) {
	if sc.spaced(words, line) {
		return
	}
	for i, w := range words {
		if strings.HasPrefix(w.text, "-") {
			continue
		}
		if sc.assign(w, line, true) {
			name, value, _ := strings.Cut(w.text, "=")
			if value == "" && !w.open && i+1 < len(words) && !strings.Contains(words[i+1].text, "=") && Lookup(words[i+1].text) == nil {
				sc.fault("shell-space", name, line, "a blank behind = ends the assignment: the value is empty", "write "+name+"=value without blanks")
			}
			continue
		}
		if Interesting(w.text) {
			sc.exported[w.text] = true
			if s, ok := sc.pending[w.text]; ok {
				sc.c.set(s)
				delete(sc.pending, w.text)
			}
		}
	}
}

// spaced finds NAME = value, which sets nothing.
func (sc *script) spaced(words []word, line int) bool {
	if len(words) > 1 && strings.HasPrefix(words[1].text, "=") && namePattern.MatchString(words[0].text) && Interesting(words[0].text) {
		sc.fault("shell-space", words[0].text, line, "with blanks around = the shell sets nothing", "write "+words[0].text+"=value without blanks")
		return true
	}
	return false
}

// options finds what launchers and containers are told to set: mpirun -x A=1, srun --export=ALL,A=1, docker -e A=1, mpiexec -genv A 1, env A=1.
func (sc *script) options(words []word, line int) {
	for i := 0; i < len(words); i++ {
		w := words[i]
		opt, value, hasValue := strings.Cut(w.text, "=")
		switch {
		case slices.Contains([]string{"-x", "-e", "--env", "-env", "--mca-env"}, w.text) && i+1 < len(words):
			i++
			if !sc.assign(words[i], line, true) && Interesting(words[i].text) && i+1 < len(words) && w.text == "-env" {
				sc.c.set(Setting{Name: words[i].text, Value: words[i+1].text, Open: words[i+1].open, From: sc.name, Line: line})
			}
		case w.text == "-genv" && i+2 < len(words):
			sc.c.set(Setting{Name: words[i+1].text, Value: words[i+2].text, Open: words[i+2].open, From: sc.name, Line: line})
			i += 2
		case opt == "--export" && hasValue:
			sc.list(value, w.open, line)
		case w.text == "--export" && i+1 < len(words):
			i++
			sc.list(words[i].text, words[i].open, line)
		case (opt == "--env" || opt == "-e") && hasValue:
			sc.assign(word{text: value, open: w.open}, line, true)
		case w.text == "env":
			for i+1 < len(words) && sc.assign(words[i+1], line, true) {
				i++
			}
		}
	}
}

// list is Slurm's: commas between, but a value may hold commas as well, so an item without = belongs to the one before.
func (sc *script) list(text string, open bool, line int) {
	var items []string
	for _, part := range strings.Split(text, ",") {
		if len(items) > 0 && !assignment.MatchString(part) && !namePattern.MatchString(part) {
			items[len(items)-1] += "," + part
			continue
		}
		items = append(items, part)
	}
	for i, it := range items {
		if name, value, ok := strings.Cut(it, "="); ok && i+1 < len(items) && !strings.Contains(items[i+1], "=") && Interesting(name) && value != "" {
			sc.fault("slurm-comma", name, line, "--export cuts its list at every comma: only "+show(value)+" is set", "export the variable in the script and write --export=ALL")
		}
		sc.assign(word{text: it, open: open}, line, true)
	}
}

// unexported tells of assignments that no program sees, if the script otherwise exports.
func (sc *script) unexported() {
	names := make([]string, 0, len(sc.pending))
	for n := range sc.pending {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, n := range names {
		s := sc.pending[n]
		if sc.c.src.has(n) {
			continue
		}
		if sc.exports {
			sc.fault("not-exported", n, s.Line, "assigned but not exported: the shell keeps it to itself", "write export "+n+"=…")
			continue
		}
		sc.c.set(s)
	}
}

// has is Get before the settings are sorted.
func (s *Source) has(name string) bool {
	return slices.ContainsFunc(s.Settings, func(x Setting) bool { return x.Name == name })
}
