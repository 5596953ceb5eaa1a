// Package commprobe_test holds the rules of the house that a compiler does not check. Each message says where and what to do.
package commprobe_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	module       = "github.com/commprobe/commprobe"
	maxFuncLines = 80
)

// room is one package: whether it must build without cgo, and which of ours it may import. "internal/*" means all below internal.
type room struct {
	noCgo bool
	may   []string
}

// The Makefile reads the names of the packages without cgo from these lines, so each row stays on one line.
var rooms = map[string]room{
	"csrc":                   {may: []string{"internal/bindtest"}},
	"cuda":                   {may: []string{"csrc", "internal/bindtest"}},
	"nccl":                   {may: []string{"csrc", "cuda", "internal/bindtest"}},
	"nccl/ncclog":            {noCgo: true, may: []string{"internal/rankset"}},
	"nccl/ncclenv":           {noCgo: true},
	"nccl/ras":               {noCgo: true, may: []string{"internal/rankset"}},
	"ibverbs":                {may: []string{"csrc", "internal/bindtest"}},
	"rdma":                   {may: []string{"ibverbs", "csrc", "cuda", "internal/*", "bench/stat", "bench/result"}},
	"rdma/pairs":             {may: []string{"rdma", "internal/*", "bench/stat"}},
	"links":                  {may: []string{"csrc", "cuda", "internal/*"}},
	"gdr":                    {may: []string{"cuda", "ibverbs", "rdma", "internal/*"}},
	"doctor":                 {may: []string{"internal/nvml", "internal/topo", "nccl/ncclenv"}},
	"internal/rankset":       {noCgo: true},
	"internal/bootstrap":     {noCgo: true, may: []string{"internal/rankset"}},
	"internal/launch":        {noCgo: true, may: []string{"internal/bootstrap"}},
	"internal/topo":          {noCgo: true, may: []string{"internal/topo/topotest"}},
	"internal/topo/topotest": {noCgo: true}, // for tests
	"internal/nvml":          {may: []string{"csrc", "internal/bindtest"}},
	"internal/bindtest":      {noCgo: true}, // for tests
	"bench":                  {may: []string{"csrc", "cuda", "nccl", "internal/*", "bench/result", "bench/stat", "hanglab/flight"}},
	"bench/result":           {noCgo: true},
	"bench/stat":             {noCgo: true, may: []string{"bench/result"}},
	"bench/costmodel":        {noCgo: true},
	"bench/report":           {noCgo: true, may: []string{"bench/result", "bench/stat", "bench/costmodel"}},
	"hanglab":                {may: []string{"bench", "csrc", "cuda", "nccl", "internal/*", "hanglab/*"}},
	"hanglab/flight":         {noCgo: true},
	"hanglab/watch":          {noCgo: true, may: []string{"internal/rankset"}},
	"hanglab/timeline":       {noCgo: true, may: []string{"internal/rankset"}},
	"hanglab/pages":          {noCgo: true},
	"hanglab/evidence":       {noCgo: true, may: []string{"nccl/ncclog", "nccl/ras", "hanglab/flight", "internal/rankset"}},
	"hanglab/live":           {noCgo: true, may: []string{"hanglab/evidence", "hanglab/flight", "nccl/ras", "internal/*"}},
	"hanglab/diagnose":       {noCgo: true, may: []string{"hanglab/evidence", "hanglab/flight", "nccl/ras", "internal/rankset"}},
	"cmd/commprobe":          {may: []string{"*"}},
}

var (
	bindings = []string{"csrc", "cuda", "nccl", "ibverbs"} // the only ones near C
	obvious  = []string{"Error", "String", "Unwrap"}       // methods that the standard library documents
	vague    = []string{"util", "utils", "common", "helper", "helpers"}
	// Split, or this file would name what it forbids.
	machinePath = regexp.MustCompile(`(^|[^\w.-])/(wo` + `rk|fa` + `rm)/`)
)

func matches(patterns []string, dir string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		prefix, wild := strings.CutSuffix(p, "*")
		return p == dir || wild && strings.HasPrefix(dir, prefix)
	})
}

// source is one Go file under check.
type source struct {
	dir, path string // relative to the root, with slashes
	test      bool
	fset      *token.FileSet
	ast       *ast.File
	found     []string
}

func (s *source) report(at ast.Node, format string, args ...any) {
	s.found = append(s.found, fmt.Sprintf("%s:%d: ", s.path, s.fset.Position(at.Pos()).Line)+fmt.Sprintf(format, args...))
}

// checkGo applies the rules for a single Go file.
func checkGo(name string, text []byte) []string {
	s := &source{dir: path.Dir(name), path: name, test: strings.HasSuffix(name, "_test.go"), fset: token.NewFileSet()}
	var err error
	if s.ast, err = parser.ParseFile(s.fset, name, text, parser.ParseComments|parser.SkipObjectResolution); err != nil {
		return []string{err.Error()}
	}
	if pkg := strings.TrimSuffix(s.ast.Name.Name, "_test"); slices.Contains(vague, pkg) || slices.Contains(vague, path.Base(s.dir)) {
		s.report(s.ast.Name, "package %s: name the package after what it provides", pkg)
	}
	if _, ok := rooms[s.dir]; !ok && s.dir != "." {
		s.report(s.ast.Name, "%s is not in the table of tidy_test.go: add it there and to docs/DESIGN.md, with what it may import", s.dir)
	}
	for _, imp := range s.ast.Imports {
		s.checkImport(imp)
	}
	for _, d := range s.ast.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			s.checkFunc(d)
		case *ast.GenDecl:
			s.checkDocs(d)
		}
	}
	s.checkExit()
	return s.found
}

func (s *source) checkImport(imp *ast.ImportSpec) {
	target, _ := strconv.Unquote(imp.Path.Value) // the parser has seen to it
	if (target == "C" || target == "unsafe") && !matches(bindings, s.dir) {
		s.report(imp, "import %q: only %s may; put the call there and export a plain Go function", target, strings.Join(bindings, ", "))
	}
	ours, ok := strings.CutPrefix(target, module+"/")
	if !ok || ours == s.dir { // a package's own external test
		return
	}
	if matches([]string{"cmd/*"}, ours) {
		s.report(imp, "imports %s: nothing imports cmd; move what is shared into a package below it", ours)
	} else if !matches(rooms[s.dir].may, ours) {
		s.report(imp, "%s must not import %s (may: %s): move the code, or change the table in tidy_test.go and say why in docs/DESIGN.md",
			s.dir, ours, strings.Join(rooms[s.dir].may, ", "))
	}
}

func (s *source) checkFunc(f *ast.FuncDecl) {
	if n := s.fset.Position(f.End()).Line - s.fset.Position(f.Pos()).Line + 1; n > maxFuncLines {
		s.report(f, "%s has %d lines, at most %d: split it", f.Name.Name, n, maxFuncLines)
	}
	if f.Recv == nil && f.Name.Name == "init" {
		s.report(f, "init(): make it a call or a sync.OnceValue, so that importing has no effect")
	}
	if s.test || !f.Name.IsExported() || f.Doc.Text() != "" {
		return
	}
	if f.Recv == nil || ast.IsExported(receiver(f)) && !slices.Contains(obvious, f.Name.Name) {
		s.report(f, "%s is exported: say in a doc comment what it does", f.Name.Name)
	}
}

func receiver(f *ast.FuncDecl) string {
	t := f.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.IndexListExpr:
			t = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}

// checkDocs wants a comment on every exported type, variable and constant; one on the group or at the end of the line counts.
func (s *source) checkDocs(d *ast.GenDecl) {
	if s.test || d.Doc.Text() != "" {
		return
	}
	for _, spec := range d.Specs {
		switch spec := spec.(type) {
		case *ast.TypeSpec:
			if spec.Name.IsExported() && spec.Doc.Text() == "" {
				s.report(spec, "type %s is exported: say in a doc comment what it is", spec.Name.Name)
			}
		case *ast.ValueSpec:
			i := slices.IndexFunc(spec.Names, (*ast.Ident).IsExported)
			if i >= 0 && spec.Doc.Text() == "" && spec.Comment.Text() == "" {
				s.report(spec, "%s %s is exported: say in a doc comment what it is", d.Tok, spec.Names[i].Name)
			}
		}
	}
}

// checkExit finds what ends the process. log.Fatal does as well, and no deferred call runs.
func (s *source) checkExit() {
	if matches([]string{"cmd/*"}, s.dir) {
		return
	}
	names := map[string]string{} // what the file calls the two packages
	for _, imp := range s.ast.Imports {
		if p := strings.Trim(imp.Path.Value, `"`); p == "os" || p == "log" {
			names[p] = p
			if imp.Name != nil {
				names[p] = imp.Name.Name
			}
		}
	}
	ast.Inspect(s.ast, func(n ast.Node) bool {
		if f, ok := n.(*ast.FuncDecl); ok && s.test && f.Name.Name == "TestMain" {
			return false
		}
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := sel.X.(*ast.Ident); ok &&
				(x.Name == names["os"] && sel.Sel.Name == "Exit" || x.Name == names["log"] && strings.HasPrefix(sel.Sel.Name, "Fatal")) {
				s.report(sel, "%s.%s outside cmd: return an error and let the command choose the exit status", x.Name, sel.Sel.Name)
			}
		}
		return true
	})
}

// checkText looks for paths that exist only on the machine where this was written.
func checkText(name string, text []byte) (found []string) {
	if bytes.IndexByte(text, 0) >= 0 {
		return nil
	}
	n := 0
	for line := range bytes.Lines(text) {
		n++
		if m := machinePath.Find(line); m != nil {
			found = append(found, fmt.Sprintf("%s:%d: names a path of one machine (%s…): make it relative or leave it out", name, n, bytes.TrimSpace(m)))
		}
	}
	return found
}

// listed is what `go list` says about a package.
type listed struct {
	ImportPath string
	Standard   bool
	CgoFiles   []string
	Deps       []string
}

// checkNoCgo finds packages that promise to need no C compiler and depend on one, outside the standard library, which can do without.
func checkNoCgo(pkgs map[string]listed) (found []string) {
	for dir, r := range rooms {
		p, ok := pkgs[module+"/"+dir]
		if !ok || !r.noCgo {
			continue
		}
		for _, dep := range append(p.Deps, p.ImportPath) {
			if d := pkgs[dep]; len(d.CgoFiles) > 0 && !d.Standard {
				found = append(found, fmt.Sprintf("%s must work without cgo, but needs %s: see `go list -deps ./%s` and cut that import", dir, dep, dir))
			}
		}
	}
	return found
}

// buildWithoutCgo compiles packages below dir as a machine without a C compiler does.
func buildWithoutCgo(dir string, pkgs ...string) error {
	cmd := exec.Command("go", append([]string{"build"}, pkgs...)...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("CGO_ENABLED=0 go build: %w\n%s", err, out)
	}
	return nil
}

// walk hands every file of the repository to f; hidden folders and what the Makefile makes are not of it.
func walk(t *testing.T, f func(name string, text []byte)) {
	t.Helper()
	err := fs.WalkDir(os.DirFS("."), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist): // an editor or a test beside this one
			return nil
		case err != nil:
			return err
		case d.IsDir():
			if hidden := strings.HasPrefix(name, ".") && name != "." && name != ".ci" && name != ".github"; hidden || name == "bin" || name == "out" {
				return fs.SkipDir
			}
			return nil
		case !d.Type().IsRegular() || strings.HasSuffix(name, ".test") || strings.HasSuffix(name, ".prof"):
			return nil
		}
		text, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		f(name, text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestTidyFiles(t *testing.T) {
	goFiles := 0
	walk(t, func(name string, text []byte) {
		found := checkText(name, text)
		if strings.HasSuffix(name, ".go") && !strings.Contains("/"+name, "/testdata/") {
			goFiles++
			found = append(found, checkGo(name, text)...)
		}
		for _, f := range found {
			t.Error(f)
		}
	})
	if goFiles < 20 {
		t.Errorf("looked at %d Go files only: does the test run in the root of the repository?", goFiles)
	}
}

func TestTidyWithoutCgo(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,Standard,CgoFiles,Deps", "./...")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, &stderr)
	}
	pkgs := map[string]listed{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := dec.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs[p.ImportPath] = p
	}
	for _, f := range checkNoCgo(pkgs) {
		t.Error(f)
	}
	var build []string
	for dir, r := range rooms {
		if _, ok := pkgs[module+"/"+dir]; ok && r.noCgo {
			build = append(build, "./"+dir)
		}
	}
	if len(build) == 0 {
		t.Fatal("go list shows none of the packages without cgo")
	}
	if err := buildWithoutCgo(".", build...); err != nil {
		t.Error(err)
	}
}

func TestTidyRulesFire(t *testing.T) {
	long := "package cuda\nfunc f() {" + strings.Repeat("\n", maxFuncLines)
	tests := []struct{ name, path, src, want string }{
		{"cgo", "bench/a.go", "package bench\nimport \"C\"", `bench/a.go:2: import "C": only csrc`},
		{"cgo in its place", "csrc/a.go", "package csrc\nimport \"C\"\nimport \"unsafe\"", ""},
		{"unsafe, also below a binding", "nccl/ras/a.go", "package ras\nimport _ \"unsafe\"", `nccl/ras/a.go:2: import "unsafe"`},
		{"upward import", "cuda/a.go", "package cuda\nimport _ \"" + module + "/bench\"", "cuda/a.go:2: cuda must not import bench"},
		{"upward import of a test", "nccl/a_test.go", "package nccl\nimport _ \"" + module + "/hanglab\"", "nccl must not import hanglab"},
		{"own external test", "nccl/a_test.go", "package nccl_test\nimport _ \"" + module + "/nccl\"", ""},
		{"sideways import", "bench/a.go", "package bench\nimport _ \"" + module + "/bench/report\"", "bench must not import bench/report"},
		{"allowed by pattern", "bench/a.go", "package bench\nimport _ \"" + module + "/internal/launch\"", ""},
		{"cmd", "cmd/commprobe/a.go", "package main\nimport _ \"" + module + "/cmd/other\"", "nothing imports cmd"},
		{"unknown package", "bench/extra/a.go", "package extra", "bench/extra/a.go:1: bench/extra is not in the table"},
		{"vague name", "cuda/a.go", "package util", "package util: name"},
		{"vague folder", "internal/common/a.go", "package shared", "name the package after"},
		{"function of 81 lines", "cuda/a.go", long + "}", "cuda/a.go:2: f has 81 lines"},
		{"function of 80 lines", "cuda/a.go", strings.Replace(long, "\n\n", "\n", 1) + "}", ""},
		{"init", "cuda/a.go", "package cuda\nfunc init() {}", "cuda/a.go:2: init()"},
		{"method called init", "cuda/a.go", "package cuda\ntype t int\nfunc (t) init() {}", ""},
		{"exit", "bench/a.go", "package bench\nimport \"os\"\nfunc f() { os.Exit(1) }", "bench/a.go:3: os.Exit outside cmd"},
		{"exit by another name", "bench/a.go", "package bench\nimport sys \"os\"\nvar f = sys.Exit", "bench/a.go:3: sys.Exit"},
		{"exit by log", "bench/a.go", "package bench\nimport \"log\"\nfunc f() { log.Fatalf(\"\") }", "log.Fatalf outside cmd"},
		{"exit in cmd", "cmd/commprobe/a.go", "package main\nimport \"os\"\nfunc main() { os.Exit(1) }", ""},
		{"exit in TestMain", "cuda/a_test.go", "package cuda\nimport \"os\"\nfunc TestMain() { os.Exit(1) }", ""},
		{"exit in a test", "cuda/a_test.go", "package cuda\nimport \"os\"\nfunc TestX() { os.Exit(1) }", "os.Exit outside cmd"},
		{"function without doc", "cuda/a.go", "package cuda\nfunc F() {}", "cuda/a.go:2: F is exported"},
		{"directive is no doc", "cuda/a.go", "package cuda\n//go:noinline\nfunc F() {}", "F is exported"},
		{"method without doc", "cuda/a.go", "package cuda\n// T is.\ntype T[P any] int\nfunc (*T[P]) M() {}", "cuda/a.go:4: M is exported"},
		{"method that needs no doc", "cuda/a.go", "package cuda\n// T is.\ntype T int\nfunc (T) Error() string { return \"\" }", ""},
		{"method of a hidden type", "cuda/a.go", "package cuda\ntype t int\nfunc (*t) M() {}", ""},
		{"type without doc", "cuda/a.go", "package cuda\ntype T int", "type T is exported"},
		{"variable without doc", "cuda/a.go", "package cuda\nvar a, B int", "var B is exported"},
		{"constant without doc", "cuda/a.go", "package cuda\nconst (\n\tA = 1 // is one\n\tB = 2\n)", "cuda/a.go:4: const B is exported"},
		{"documented group", "cuda/a.go", "package cuda\n// Sizes.\nconst (\n\tA = 1\n\tB = 2\n)", ""},
		{"test without doc", "cuda/a_test.go", "package cuda\ntype T int\nfunc TestX() {}", ""},
		{"syntax", "cuda/a.go", "package cuda\nfunc", "cuda/a.go:2"},
		{"path", "docs/a.md", "x\nin /wo" + "rk/main", "docs/a.md:2: names a path of one machine"},
		{"path in quotes", "a.go", "package a\nvar p = \"/fa" + "rm/x\"", "a.go:2: names a path"},
		{"path of something else", "docs/a.md", "https://a.org/wo" + "rk/x ./wo" + "rk/y", ""},
		{"binary", "a.png", "\x00/wo" + "rk/", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			found := checkText(tt.path, []byte(tt.src))
			if strings.HasSuffix(tt.path, ".go") {
				found = append(found, checkGo(tt.path, []byte(tt.src))...)
			}
			got := strings.Join(found, "\n")
			if tt.want == "" && got != "" || !strings.Contains(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestTidyNoCgoFires(t *testing.T) {
	clean := listed{ImportPath: module + "/bench/report", Deps: []string{"net", module + "/bench/result"}}
	dirty := clean
	dirty.Deps = append(dirty.Deps, module+"/csrc")
	pkgs := map[string]listed{
		"net":            {Standard: true, CgoFiles: []string{"cgo.go"}},
		module + "/csrc": {CgoFiles: []string{"csrc.go"}},
	}
	for _, tt := range []struct {
		p    listed
		want string
	}{{clean, ""}, {dirty, "bench/report must work without cgo, but needs " + module + "/csrc"}} {
		pkgs[tt.p.ImportPath] = tt.p
		got := strings.Join(checkNoCgo(pkgs), "\n")
		if tt.want == "" && got != "" || !strings.Contains(got, tt.want) {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}

	dir := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module m\n\ngo 1.26.0\n", "a/a.go": "package a\n", "b/b.go": "package b\n\nimport \"C\"\n"} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := buildWithoutCgo(dir, "./a"); err != nil {
		t.Error(err)
	}
	if err := buildWithoutCgo(dir, "./b"); err == nil {
		t.Error("a package of cgo files built without cgo")
	}
}
