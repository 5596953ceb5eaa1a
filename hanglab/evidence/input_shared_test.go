package evidence

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
)

// TestSharedInputs reads every file of the shared data and compares what kind of input it is, and how many facts of which kind it has, with a golden file.
// The golden file has counts only: the public samples' sentences stay where they are.
func TestSharedInputs(t *testing.T) {
	root := "../../../shared/data"
	if _, err := os.Stat(root); err != nil {
		t.Skip("the shared data is not here")
	}
	var b strings.Builder
	for _, folder := range []string{"torch_nccl", "torch_gloo", "hang_samples", "nvrx"} {
		e, err := Read([]string{filepath.Join(root, folder)}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		countFacts(&b, e, root)
	}
	const golden = "testdata/shared.counts"
	if *update {
		if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(strings.Split(string(want), "\n"), strings.Split(b.String(), "\n")); diff != "" {
		t.Errorf("%s (-want +got; -update rewrites it):\n%s", golden, diff)
	}
}

func countFacts(b *strings.Builder, e *Evidence, root string) {
	byFile := map[string]map[string]int{}
	count := func(file, what string) {
		if byFile[file] == nil {
			byFile[file] = map[string]int{}
		}
		byFile[file][what]++
	}
	for _, f := range e.Facts {
		count(f.Where.File, string(f.Kind))
	}
	for _, d := range e.Dumps {
		count(d.Where.File, "dump")
	}
	for _, c := range e.Comms {
		count(c.Where.File, "comm")
	}
	for _, r := range e.RAS {
		count(r.Where.File, "ras")
	}
	for _, s := range e.Stacks {
		count(s.Where.File, "stack")
	}
	for _, in := range e.Inputs {
		name, _ := filepath.Rel(root, in.Name)
		fmt.Fprintf(b, "%s: %s", name, in.Kind)
		if in.Rank >= 0 {
			fmt.Fprintf(b, " of rank %d", in.Rank)
		}
		if in.Err != "" {
			fmt.Fprintf(b, " (%s)", in.Err)
		}
		var parts []string
		for what, n := range byFile[in.Name] {
			parts = append(parts, fmt.Sprintf("%s %d", what, n))
		}
		slices.SortFunc(parts, cmp.Compare[string])
		if len(parts) > 0 {
			b.WriteString(": " + strings.Join(parts, ", "))
		}
		b.WriteByte('\n')
	}
}
