package ncclenv

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strings"
)

// Setting is one variable with its value, and where it was set.
type Setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	From  string `json:"from"` // "environment", or a file
	Line  int    `json:"line,omitempty"`
	// Open: a shell has still to replace something in the value. Hidden: the value is not kept, as it may be a secret.
	Open   bool `json:"open,omitempty"`
	Hidden bool `json:"hidden,omitempty"`

	machine *Machine
}

// Where says where the setting stands.
func (s *Setting) Where() string { return where(s.From, s.Line) }

// Machine is what is known of the machine on which the settings hold; nil where they come from elsewhere.
type Machine struct {
	Interfaces, HCAs []string
	Exists           func(path string) bool // may be nil
}

// Source is the settings of one process or host.
type Source struct {
	Name     string    `json:"name"`
	Kind     string    `json:"kind"` // environment, process, settings file, script, variables, json, log
	NCCL     Version   `json:"nccl_version,omitzero"`
	Settings []Setting `json:"settings"`        // in force, by name
	Hints    []string  `json:"hints,omitempty"` // names of other libraries' variables; their values are not kept
	Partial  bool      `json:"partial,omitempty"`
	Found    []Finding `json:"-"` // what reading alone showed
}

// Get returns what is in force for a name, or nil.
func (s *Source) Get(name string) *Setting {
	i, ok := slices.BinarySearchFunc(s.Settings, name, func(s Setting, n string) int { return strings.Compare(s.Name, n) })
	if !ok {
		return nil
	}
	return &s.Settings[i]
}

var (
	namePattern   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	secretPattern = regexp.MustCompile(`(?i)token|secret|passw|credential|api_?key`)
)

// Interesting tells whether a variable may be kept and shown. Everything else in an environment, where secrets are, is dropped at once.
func Interesting(name string) bool {
	up := strings.ToUpper(name)
	for _, p := range []string{"NCCL_", "TORCH_NCCL_", "TORCH_FR_", "TORCH_DISTRIBUTED_"} {
		if strings.HasPrefix(up, p) {
			return true
		}
	}
	if name != "HOME" && Lookup(name) != nil {
		return true
	}
	prefix, rest, _ := strings.Cut(up, "_")
	return misspelt(prefix) && Lookup("NCCL_"+rest) != nil
}

// maxSettings is how many variables of one source are kept.
const maxSettings = 2000

func isHint(name string) bool {
	return strings.HasPrefix(name, "UCX_") || strings.HasPrefix(name, "NVSHMEM_")
}

// collector gathers settings under the rule of its kind of source.
type collector struct {
	src      *Source
	lastWins bool
	at       map[string]int
}

func newCollector(name, kind string, lastWins bool) *collector {
	return &collector{src: &Source{Name: name, Kind: kind}, lastWins: lastWins, at: map[string]int{}}
}

// set keeps a setting unless an earlier one counts; it returns that one.
func (c *collector) set(s Setting) *Setting {
	if isHint(s.Name) {
		if !slices.Contains(c.src.Hints, s.Name) && len(c.src.Hints) < 50 {
			c.src.Hints = append(c.src.Hints, s.Name)
		}
		return nil
	}
	if !Interesting(s.Name) || !namePattern.MatchString(s.Name) {
		return nil
	}
	if secretPattern.MatchString(s.Name) {
		s.Value, s.Hidden = "", true
	}
	i, ok := c.at[s.Name]
	switch {
	case !ok && len(c.src.Settings) >= maxSettings: // nobody sets so many; a file made to keep us busy does
	case !ok:
		c.at[s.Name] = len(c.src.Settings)
		c.src.Settings = append(c.src.Settings, s)
	case c.lastWins:
		c.src.Settings[i] = s
	default:
		return &c.src.Settings[i]
	}
	return nil
}

func (c *collector) unset(name string) {
	if i, ok := c.at[name]; ok {
		c.src.Settings = slices.Delete(c.src.Settings, i, i+1)
		delete(c.at, name)
		for n, j := range c.at {
			if j > i {
				c.at[n] = j - 1
			}
		}
	}
}

func (c *collector) finish() *Source {
	slices.SortFunc(c.src.Settings, func(a, b Setting) int { return strings.Compare(a.Name, b.Name) })
	slices.Sort(c.src.Hints)
	return c.src
}

// MaxBytes limits what Read takes in; longer logs are read up to there.
const MaxBytes = 256 << 20

// Read takes settings from a file: the output of env, an env file, shell or batch scripts, a settings file of NCCL (by its name), a copy of
// /proc/PID/environ, docker inspect and other JSON, YAML of Kubernetes, or an NCCL log. JSON and logs may hold several hosts or containers.
func Read(r io.Reader, name string) ([]*Source, error) {
	in := bufio.NewReaderSize(io.LimitReader(r, MaxBytes), 1<<16)
	head, err := in.Peek(1 << 16)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	switch start := bytes.TrimLeft(bytes.TrimPrefix(head, []byte("\ufeff")), " \t\r\n"); {
	case isConfName(name):
		c := newCollector(name, "settings file", false)
		c.readConf(in, name, Version{})
		return []*Source{c.finish()}, nil
	case bytes.IndexByte(head, 0) >= 0:
		return readEnviron(in, name)
	case len(start) > 0 && (start[0] == '[' || start[0] == '{'):
		text, err := io.ReadAll(in)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if doc := bytes.TrimPrefix(text, []byte("\ufeff")); json.Valid(doc) {
			return readJSON(doc, name)
		}
		return readLines(bytes.NewReader(text), name) // a log may begin with [rank0]:
	}
	return readLines(in, name)
}

func isConfName(name string) bool {
	return strings.HasSuffix(path.Base(strings.ToLower(name)), "nccl.conf")
}

// readEnviron reads what the kernel gives for a process: NAME=value, each ended by a zero byte. The first of equal names counts, as for getenv.
func readEnviron(r io.Reader, name string) ([]*Source, error) {
	text, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return []*Source{environment(strings.Split(string(text), "\x00"), name, "variables")}, nil
}

func environment(list []string, name, kind string) *Source {
	c := newCollector(name, kind, false)
	for _, item := range list {
		if n, value, ok := strings.Cut(item, "="); ok {
			c.set(Setting{Name: n, Value: value, From: name})
		}
	}
	return c.finish()
}

// lines yields each line without its newline, at most maxLine bytes of it. A carriage return stays, because NCCL used to keep it.
func lines(r io.Reader, yield func(n int, line string)) error {
	const maxLine = 64 << 10
	in := bufio.NewReaderSize(r, maxLine)
	for n := 1; ; n++ {
		line, err := in.ReadSlice('\n')
		text := string(bytes.TrimSuffix(line, []byte("\n")))
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = in.ReadSlice('\n')
		}
		if len(line) > 0 {
			yield(n, text)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// readLines reads text of any of the forms that go by lines. Logs are told from scripts by their NCCL INFO; which of the other forms it is shows only
// at its end, because one export anywhere makes it a script.
func readLines(r io.Reader, name string) ([]*Source, error) {
	logs := newLogReader(name)
	var kept []scriptLine
	isScript, joined := false, ""
	joinedAt := 0
	err := lines(r, func(n int, line string) {
		line = strings.TrimSuffix(line, "\r")
		if n == 1 {
			line = strings.TrimPrefix(line, "\ufeff")
		}
		if logs.line(line, n) {
			return
		}
		isScript = isScript || scriptStart.MatchString(line)
		if joined == "" {
			joinedAt = n
		}
		if strings.HasSuffix(line, `\`) && len(joined) < 1<<16 {
			joined += line[:len(line)-1] + " "
			isScript = true
			return
		}
		line, joined = joined+line, ""
		if len(kept) < 1<<16 && worthKeeping(line, kept) {
			kept = append(kept, scriptLine{joinedAt, line})
		}
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if joined != "" {
		kept = append(kept, scriptLine{joinedAt, joined})
	}
	if logs.seen {
		return logs.sources(), nil
	}
	if isScript {
		return []*Source{readScript(kept, name)}, nil
	}
	return readLabelled(kept, name), nil
}

var label = regexp.MustCompile(`^\s*([A-Za-z0-9][A-Za-z0-9._-]*): ([A-Za-z_][A-Za-z0-9_]*=.*)$`)

// readLabelled tells apart what several ranks or hosts printed, as srun -l ("3: NAME=value") and pdsh ("node3: NAME=value") label it.
func readLabelled(kept []scriptLine, name string) []*Source {
	var labels []string
	by, n := map[string][]scriptLine{}, 0
	for _, l := range kept {
		if m := label.FindStringSubmatch(l.text); m != nil && !Interesting(m[1]) && (by[m[1]] != nil || len(labels) < 4096) {
			if by[m[1]] == nil {
				labels = append(labels, m[1])
			}
			by[m[1]] = append(by[m[1]], scriptLine{l.n, m[2]})
			n++
		}
	}
	if n == 0 || 2*n < len(kept) { // some text that happens to have a colon
		return []*Source{readVariables(kept, name)}
	}
	slices.SortFunc(labels, func(a, b string) int { return cmp.Or(len(a)-len(b), strings.Compare(a, b)) })
	var out []*Source
	for _, l := range labels {
		src := readVariables(by[l], name)
		src.Name = l
		if strings.Trim(l, "0123456789") == "" {
			src.Name = "rank " + l
		}
		out = append(out, src)
	}
	return out
}

// scriptLine is a line that may set something.
type scriptLine struct {
	n    int
	text string
}

var (
	scriptStart = regexp.MustCompile(`^(#!|#SBATCH\b|#PBS\b|\s*(export|declare -x|setenv|unset|module|srun|sbatch|mpirun|mpiexec|torchrun|set -|ENV|docker|FROM|RUN)\b)`)
	mention     = regexp.MustCompile(`(?i)[NCL]{3,6}_|TORCH_|CUDA_|LD_LIBRARY_PATH|UCX_|NVSHMEM_|DOCA_GPUNETIO_|\bset\s+[-+]|\bvalue:`)
)

// worthKeeping drops what cannot matter, so that neither memory nor secrets pile up.
func worthKeeping(line string, before []scriptLine) bool {
	return mention.MatchString(line) && (!strings.Contains(line, "value:") || len(before) > 0 || mention.MatchString(strings.ReplaceAll(line, "value:", "")))
}

var (
	yamlName  = regexp.MustCompile(`^[\s-]*name:\s*["']?([A-Za-z_]\w*)["']?\s*$`)
	yamlValue = regexp.MustCompile(`^\s*value:\s*(.*?)\s*$`)
	yamlPair  = regexp.MustCompile(`^[\s-]*([A-Za-z_]\w*):\s+(.*?)\s*$`)
)

// readVariables reads the output of env, env files of containers, and YAML: what stands behind = is the value, quotes and all.
func readVariables(kept []scriptLine, name string) *Source {
	c := newCollector(name, "variables", true)
	pending, pendingAt := "", 0
	for _, l := range kept {
		text := l.text
		if m := yamlName.FindStringSubmatch(text); m != nil {
			pending, pendingAt = m[1], l.n
			continue
		}
		if m := yamlValue.FindStringSubmatch(text); m != nil && pending != "" && l.n == pendingAt+1 {
			c.set(Setting{Name: pending, Value: yamlScalar(m[1]), From: name, Line: l.n})
			pending = ""
			continue
		}
		if m := yamlPair.FindStringSubmatch(text); m != nil && Interesting(m[1]) {
			c.set(Setting{Name: m[1], Value: yamlScalar(m[2]), From: name, Line: l.n})
			continue
		}
		if strings.HasPrefix(strings.TrimSpace(text), "#") {
			continue
		}
		n, value, ok := strings.Cut(text, "=")
		if !ok {
			continue
		}
		trimmed := strings.TrimSpace(n)
		if trimmed != n && strings.HasSuffix(n, " ") && Interesting(trimmed) {
			c.src.Found = append(c.src.Found, Finding{ID: "name-blank", Severity: Fault, Name: trimmed, From: name, Line: l.n,
				Text: "a blank in front of = is part of the name, which then nothing reads", Advice: "write " + trimmed + "=value without blanks"})
			continue
		}
		c.set(Setting{Name: trimmed, Value: value, From: name, Line: l.n})
	}
	return c.finish()
}

// yamlScalar takes off the quotes, which in YAML are no part of a value, or a comment.
func yamlScalar(s string) string {
	if len(s) > 1 && (s[0] == '"' || s[0] == '\'') {
		if end := strings.IndexByte(s[1:], s[0]); end >= 0 {
			return s[1 : 1+end]
		}
	}
	before, _, _ := cutComment(s)
	return before
}
