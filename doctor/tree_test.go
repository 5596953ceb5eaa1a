package doctor

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/commprobe/commprobe/internal/nvml"
)

// Trees of files, in testdata/*.tree, written in short. A line is one of
//
//	path = text            a file; \n, \t and \x7b as in Go
//	path -> other          a symbolic link; both are given from the root, and made relative
//	path acs 001d          the configuration space of a bridge whose access control register holds this; none: a bridge without
//	path/                  a folder
//	rm path                what an earlier line made
//	let NAME = text        $NAME stands for text from here on
//	include file           lines of another tree
//
// {a,b,c} and {0-7} make a line for each; all such groups of a line go on together. <a,b> does the same, but groups of different text are combined, each with
// each, and equal ones go on together.
type treeBuilder struct {
	root string
	vars map[string]string
}

func (b *treeBuilder) file(t *testing.T, name string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		line = strings.TrimRight(line, "\n")
		if other, ok := strings.CutPrefix(line, "include "); ok {
			b.file(t, other)
			continue
		}
		if err := b.line(line); err != nil {
			t.Fatalf("testdata/%s:%d: %v", name, n, err)
		}
	}
}

var variable = regexp.MustCompile(`\$[A-Z]+`)

func (b *treeBuilder) line(line string) error {
	if line == "" || line[0] == '#' {
		return nil
	}
	line = variable.ReplaceAllStringFunc(line, func(s string) string { return b.vars[s[1:]] })
	if rest, ok := strings.CutPrefix(line, "let "); ok {
		name, text, _ := strings.Cut(rest, " = ")
		b.vars[name] = text
		return nil
	}
	products, err := product(line)
	if err != nil {
		return err
	}
	for _, p := range products {
		lines, err := zipped(p)
		if err != nil {
			return err
		}
		for _, l := range lines {
			if err := b.entry(l); err != nil {
				return err
			}
		}
	}
	return nil
}

var angle = regexp.MustCompile(`<[^<>\n]+>`)

// product expands the first group in angle brackets everywhere, and then the others.
func product(line string) ([]string, error) {
	group := angle.FindString(line)
	if group == "" {
		return []string{line}, nil
	}
	var out []string
	for _, item := range outside(group[1 : len(group)-1]) {
		more, err := product(strings.ReplaceAll(line, group, item))
		if err != nil {
			return nil, err
		}
		out = append(out, more...)
	}
	return out, nil
}

// outside splits at commas that are in no braces.
func outside(s string) []string {
	var out []string
	depth, from := 0, 0
	for i, c := range s {
		switch {
		case c == '{':
			depth++
		case c == '}':
			depth--
		case c == ',' && depth == 0:
			out, from = append(out, s[from:i]), i+1
		}
	}
	return append(out, s[from:])
}

var brace = regexp.MustCompile(`\{[^{}]*\}`)

func zipped(line string) ([]string, error) {
	groups := brace.FindAllString(line, -1)
	if len(groups) == 0 {
		return []string{line}, nil
	}
	n := len(items(groups[0]))
	out := make([]string, n)
	for i := range out {
		out[i] = brace.ReplaceAllStringFunc(line, func(g string) string {
			if list := items(g); i < len(list) {
				return list[i]
			}
			return g
		})
	}
	for _, g := range groups {
		if len(items(g)) != n {
			return nil, fmt.Errorf("%s has not %d items as the first group", g, n)
		}
	}
	return out, nil
}

func items(group string) []string {
	inner := group[1 : len(group)-1]
	var a, b int
	if n, _ := fmt.Sscanf(inner, "%d-%d", &a, &b); n == 2 && !strings.Contains(inner, ",") {
		var out []string
		for i := a; i <= b; i++ {
			out = append(out, strconv.Itoa(i))
		}
		return out
	}
	return strings.Split(inner, ",")
}

func (b *treeBuilder) entry(line string) error {
	at := func(name string) string { return filepath.Join(b.root, name) }
	if name, ok := strings.CutPrefix(line, "rm "); ok {
		return os.RemoveAll(at(name))
	}
	if name, target, ok := strings.Cut(line, " -> "); ok {
		dir := filepath.Dir(at(name))
		relative, err := filepath.Rel(dir, at(target))
		return errors.Join(err, os.MkdirAll(dir, 0o755), remove(at(name)), os.Symlink(relative, at(name)))
	}
	if name, control, ok := strings.Cut(line, " acs "); ok {
		return write(at(name), configuration(control))
	}
	if name, text, ok := strings.Cut(line, " ="); ok {
		text, err := strconv.Unquote(`"` + strings.ReplaceAll(strings.TrimPrefix(text, " "), `"`, `\"`) + `"`)
		if err != nil {
			return fmt.Errorf("%s: %w", line, err)
		}
		return write(at(name), text)
	}
	if strings.HasSuffix(line, "/") {
		return os.MkdirAll(at(line), 0o755)
	}
	return fmt.Errorf("%q is no line of a tree", line)
}

func remove(name string) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// write replaces a file; through a link it changes what the link leads to, as in sysfs.
func write(name, text string) error {
	return errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644))
}

// configuration is 4096 bytes with an AER capability and, unless control is none, one of access control behind it.
func configuration(control string) string {
	c := make([]byte, 4096)
	copy(c[0x100:], []byte{0x01, 0x00, 0x01, 0x00})
	if n, err := strconv.ParseUint(control, 16, 16); err == nil {
		c[0x102], c[0x103] = 0x01, 0x14 // version 1, the next one at 0x140
		copy(c[0x140:], []byte{0x0d, 0x00, 0x01, 0x00, 0x1f, 0x00, byte(n), byte(n >> 8)})
	}
	return string(c)
}

// gpuSpec is testdata/*.json: one GPU, from which all others are made.
type gpuSpec struct {
	Driver, CUDA string
	PCI          []string
	Ancestors    string
	Links        int
	Link         nvml.Link
	GPU          nvml.GPU
}

func (s *gpuSpec) node(t *testing.T) *nvml.Node {
	t.Helper()
	n := &nvml.Node{Driver: &s.Driver, CUDADriver: &s.CUDA}
	for i, pci := range s.PCI {
		var g nvml.GPU // a copy that shares no pointer
		if err := json.Unmarshal(marshal(t, s.GPU), &g); err != nil {
			t.Fatal(err)
		}
		g.Index, g.PCI = i, &pci
		for l := range s.Links {
			var link nvml.Link
			if err := json.Unmarshal(marshal(t, s.Link), &link); err != nil {
				t.Fatal(err)
			}
			link.Link = l
			g.Links = append(g.Links, link)
		}
		n.GPUs = append(n.GPUs, g)
		for j := i + 1; j < len(s.PCI); j++ {
			n.Pairs = append(n.Pairs, nvml.Pair{A: i, B: j, Ancestor: &s.Ancestors, P2P: map[string]string{"read": "OK", "write": "OK"}})
		}
	}
	return n
}

func marshal(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// fixtures are the healthy machines, and which of testdata/*.json has their GPUs.
var fixtures = map[string]string{"dgx-a100": "dgx-a100", "dgx-h100": "dgx-h100", "pcie": "pcie", "cloud-vm": "cloud-vm", "container": "dgx-h100", "plain": ""}

var noon = time.Date(2025, 6, 15, 12, 0, 0, 0, time.UTC)

// tempDir is in memory where it can be: the trees of this package's tests are some ten thousand files.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "doctor")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// healthy is a machine without faults, with its tree written anew.
func healthy(t *testing.T, name string) Node {
	t.Helper()
	b := &treeBuilder{root: tempDir(t), vars: map[string]string{}}
	b.file(t, name+".tree")
	n := Node{Root: b.root, Now: noon, Env: []string{"HOME=/root", "PATH=/usr/bin"}, NVMLErr: fmt.Errorf("%w: libnvidia-ml.so.1", nvml.ErrNoLibrary), Sleep: func(time.Duration) {}}
	n.Access = func(file string) error {
		info, err := os.Stat(file)
		if err == nil && info.Mode()&0o004 == 0 {
			err = os.ErrPermission
		}
		return err
	}
	if file := fixtures[name]; file != "" {
		text, err := os.ReadFile(filepath.Join("testdata", file+".json"))
		if err != nil {
			t.Fatal(err)
		}
		var s gpuSpec
		if err := json.Unmarshal(text, &s); err != nil {
			t.Fatalf("testdata/%s.json: %v", file, err)
		}
		n.NVML, n.NVMLErr = s.node(t), nil
	}
	return n
}

// change applies lines of a tree to a machine.
func change(t *testing.T, n *Node, lines ...string) {
	t.Helper()
	b := &treeBuilder{root: n.Root, vars: map[string]string{}}
	for _, l := range lines {
		if err := b.line(l); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTreeFormat(t *testing.T) {
	t.Parallel()
	n := Node{Root: t.TempDir()}
	change(t, &n, "a{0-2}/<x,y>/<x,y>.z = v{3,4,5}\\n", "l -> a1/x/x.z", "d/", "rm a2")
	var got []string
	for _, f := range newMachine(n).glob("*/*/*") {
		text, err := os.ReadFile(filepath.Join(n.Root, f))
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, f+string(text))
	}
	if want := []string{"a0/x/x.zv3\n", "a0/y/y.zv3\n", "a1/x/x.zv4\n", "a1/y/y.zv4\n"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if text, err := os.ReadFile(filepath.Join(n.Root, "l")); string(text) != "v4\n" {
		t.Errorf("link: %q, %v", text, err)
	}
	if info, err := os.Stat(filepath.Join(n.Root, "d")); err != nil || !info.IsDir() {
		t.Errorf("folder: %v", err)
	}
}
