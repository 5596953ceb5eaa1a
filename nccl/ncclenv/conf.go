package ncclenv

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// NCCL reads a settings file into arrays of these sizes: longer lines are cut into several (since 2.30), longer names and values are cut off.
const (
	maxConfLine  = 4095
	maxConfValue = 1023
)

// confReader reads one settings file as NCCL does: NAME=value a line, cut at the first =, nothing trimmed, no quotes, no export, no comments but for
// lines that begin with #. A variable that is set already keeps its value, so the first of equal names counts.
type confReader struct {
	c       *collector
	from    string
	version Version
	cr      bool // a carriage return was told already
}

// readConf adds a settings file to what is set already.
func (c *collector) readConf(r io.Reader, from string, version Version) {
	cr := &confReader{c: c, from: from, version: version}
	err := lines(r, cr.line)
	if err != nil {
		c.src.Found = append(c.src.Found, Finding{ID: "conf-unreadable", Severity: Fault, From: from, Text: "cannot be read to its end: " + plainError(err)})
	}
}

func (cr *confReader) add(f Finding) { cr.c.src.Found = append(cr.c.src.Found, f) }

func (cr *confReader) line(n int, text string) {
	finding := func(severity, id, name, text, advice string) {
		cr.add(Finding{ID: id, Severity: severity, Name: name, From: cr.from, Line: n, Text: text, Advice: advice})
	}
	if trimmed, had := strings.CutSuffix(text, "\r"); had {
		text = trimmed
		cr.carriage(n)
	}
	if n == 1 && strings.HasPrefix(text, "\ufeff") {
		text = strings.TrimPrefix(text, "\ufeff")
		finding(Fault, "conf-line", "", "the file begins with a byte order mark, which becomes part of the first name", "save it as plain UTF-8 without a mark")
		return
	}
	if strings.TrimSpace(text) == "" || text[0] == '#' {
		return
	}
	raw, value, ok := strings.Cut(text, "=")
	name := strings.TrimSpace(raw)
	if strings.HasPrefix(name, "#") {
		return // sets a variable that begins with #, which harms nobody
	}
	if !ok {
		shown := ""
		if f := strings.Fields(name); len(f) > 0 && Interesting(f[0]) {
			shown = f[0] // anything else may be a secret
		}
		finding(Fault, "conf-line", shown, "the line has no =: NCCL skips it without a word", "write NAME=value")
		return
	}
	if len(text) > maxConfLine || len(value) > maxConfValue {
		finding(Fault, "conf-long", known(name), fmt.Sprintf("the value has %d bytes: NCCL keeps %d", len(value), maxConfValue), "shorten it")
		value = value[:min(len(value), maxConfValue)]
	}
	if bare, has := strings.CutPrefix(name, "export "); has && Interesting(strings.TrimSpace(bare)) {
		bare = strings.TrimSpace(bare)
		finding(Fault, "conf-export", bare, "this file is no shell script: a variable of the name \"export "+bare+"\" is set", "leave export out")
		return
	}
	if name != raw && Interesting(name) {
		finding(Fault, "name-blank", name, "a blank around the name is part of it, and nothing reads that name", "write "+name+"=value at the start of the line, without blanks")
		return
	}
	cr.set(Setting{Name: name, Value: value, From: cr.from, Line: n})
}

func known(name string) string {
	if Interesting(name) {
		return name
	}
	return ""
}

// set applies a line unless the variable has a value; a different one is told.
func (cr *confReader) set(s Setting) {
	if s.Name == "NCCL_CONF_FILE" {
		cr.add(s.about(Fault, "conf-nested", "a settings file cannot name another one: NCCL looks at this variable before it reads any").do("set it in the environment"))
		return
	}
	was := cr.c.set(s)
	switch {
	case was == nil || was.Hidden:
	case was.From == s.From && was.Value == s.Value:
	case was.From == s.From:
		cr.add(s.about(Odd, "conf-twice", "set before in line %d to %s, and the first one counts", was.Line, show(was.Value)).do("remove one of the two"))
	case was.Value == s.Value:
	case was.Line == 0:
		cr.add(s.about(Odd, "shadowed", "this line has no effect: the environment says %s, and it goes before", show(was.Value)).do("remove the line, or unset the variable"))
	default:
		cr.add(s.about(Note, "shadowed", "this line has no effect: %s says %s, and it is read before", was.Where(), show(was.Value)))
	}
}

func (cr *confReader) carriage(n int) {
	if cr.cr || !cr.version.IsZero() && !cr.version.Before(Version{2, 30, 3}) {
		return
	}
	cr.cr = true
	severity := Odd
	if !cr.version.IsZero() {
		severity = Fault
	}
	cr.add(Finding{ID: "conf-crlf", Severity: severity, From: cr.from, Line: n,
		Text: "lines end with a carriage return (written on Windows): before 2.30.3 it stays at the end of each value", Advice: "sed -i 's/\\r$//' " + cr.from})
}

func plainError(err error) string {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err.Error()
	}
	return err.Error()
}

// Place is where the files of a process are: another root for processes in containers and for tests.
type Place struct {
	Root    string // in front of absolute paths
	Dir     string // for relative ones
	Machine *Machine
}

func (p Place) path(name string) string {
	if filepath.IsAbs(name) {
		return filepath.Join(p.Root, name)
	}
	return filepath.Join(p.Dir, name)
}

// FromEnvironment takes a process's environment (as os.Environ gives it) and adds what NCCL adds: NCCL_CONF_FILE or else ~/.nccl.conf, then
// /etc/nccl.conf. version may be zero.
func FromEnvironment(environ []string, place Place, version Version) *Source {
	c := newCollector("environment", "environment", false)
	var confFile, home string
	haveHome := false
	for _, item := range environ {
		name, value, ok := strings.Cut(item, "=")
		if !ok {
			continue
		}
		c.set(Setting{Name: name, Value: value, From: "environment"})
		switch {
		case name == "NCCL_CONF_FILE" && confFile == "":
			confFile = value
		case name == "HOME" && !haveHome:
			home, haveHome = value, true
		}
	}
	c.userFile(confFile, home, place, version)
	const system = "/etc/nccl.conf"
	c.file(system, place, version)
	src := c.finish()
	for i := range src.Settings {
		src.Settings[i].machine = place.Machine
	}
	return src
}

// userFile reads the file of NCCL_CONF_FILE or, without one, that in the home; never both.
func (c *collector) userFile(confFile, home string, place Place, version Version) {
	conf := Setting{Name: "NCCL_CONF_FILE", Value: confFile, From: "environment"}
	if confFile != "" && !version.IsZero() && version.Before(Version{2, 23, 4}) {
		confFile = "" // too-new tells it
	}
	own := filepath.Join(home, ".nccl.conf")
	if confFile == "" {
		if home != "" {
			c.file(own, place, version)
		}
		return
	}
	if strings.HasPrefix(confFile, "~") {
		return // told as tilde
	}
	if !c.file(confFile, place, version) {
		c.src.Found = append(c.src.Found, conf.about(Fault, "conf-missing", "there is no such file, and NCCL says nothing; ~/.nccl.conf is not read either").do("correct the path, or unset the variable"))
	}
	if _, err := os.Stat(place.path(own)); home != "" && err == nil && place.path(own) != place.path(confFile) {
		c.src.Found = append(c.src.Found, conf.about(Note, "conf-ignored", "%s exists but is not read, because NCCL_CONF_FILE is set", own))
	}
}

// file reads one settings file; false where there is none.
func (c *collector) file(name string, place Place, version Version) bool {
	f, err := os.Open(place.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	if err == nil {
		defer f.Close()
		var info fs.FileInfo
		if info, err = f.Stat(); err == nil && info.IsDir() {
			err = errors.New("it is a directory")
		}
	}
	if err != nil {
		c.src.Found = append(c.src.Found, Finding{ID: "conf-unreadable", Severity: Fault, From: name,
			Text: "cannot be read (" + plainError(err) + "): NCCL then goes on without it and says nothing", Advice: "make it readable for the user of the job"})
		return true
	}
	c.readConf(io.LimitReader(f, MaxBytes), name, version)
	return true
}

// FromProcess takes the environment with which a process was started, from proc (usually "/proc"), and the settings files that it sees, also inside
// a container. What the process changed later does not show.
func FromProcess(proc string, pid int, version Version) (*Source, error) {
	dir := filepath.Join(proc, strconv.Itoa(pid))
	text, err := os.ReadFile(filepath.Join(dir, "environ"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("there is no process %d here (inside a container only its own processes are seen)", pid)
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("the environment of process %d belongs to another user: ask as that user or as root (within a container root may need SYS_PTRACE)", pid)
	case err != nil:
		return nil, fmt.Errorf("process %d: %w", pid, err)
	case len(text) == 0:
		return nil, fmt.Errorf("process %d has no environment: it is a thread of the kernel, has just ended, or has wiped it", pid)
	}
	place := Place{Root: filepath.Join(dir, "root"), Dir: filepath.Join(dir, "cwd"), Machine: MachineAt(filepath.Join(dir, "root"))}
	src := FromEnvironment(strings.Split(string(text), "\x00"), place, version)
	src.Name, src.Kind = "process "+strconv.Itoa(pid), "process"
	return src, nil
}

// MachineAt looks up the devices of the machine below a root, usually "/".
func MachineAt(root string) *Machine {
	list := func(dir string) []string {
		entries, err := os.ReadDir(filepath.Join(root, dir))
		if err != nil {
			return nil
		}
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		slices.Sort(names)
		return names
	}
	return &Machine{Interfaces: list("sys/class/net"), HCAs: list("sys/class/infiniband"), Exists: func(name string) bool {
		if !filepath.IsAbs(name) {
			return true // relative to where the job runs, which is not known
		}
		_, err := os.Stat(filepath.Join(root, name))
		return err == nil || !errors.Is(err, fs.ErrNotExist)
	}}
}
