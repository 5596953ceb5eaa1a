package diagnose

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/commprobe/commprobe/hanglab/evidence"
)

const sharedData = "../../../shared/data"

// labelled is a case with a known answer.
type labelled struct {
	name    string
	path    string
	classes []string
	ranks   []string // accepted sets, "0,1"; "-": none; "*": any
}

// sharedCases reads labels.tsv and the "# expect:" heads of samples, which no reader may use.
func sharedCases(t *testing.T) (out []labelled) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(sharedData, "labels.tsv"))
	if err != nil {
		t.Skipf("no labelled cases here: %v", err)
	}
	for line := range strings.SplitSeq(string(text), "\n") {
		f := strings.Split(line, "\t")
		if len(f) < 3 || strings.HasPrefix(line, "#") {
			continue
		}
		out = append(out, labelled{f[0], filepath.Join(sharedData, f[0]), strings.Split(f[1], "|"), strings.Split(f[2], "/")})
	}
	samples, err := filepath.Glob(filepath.Join(sharedData, "hang_samples", "*.txt"))
	if err != nil {
		t.Fatal(err)
	}
	expect := regexp.MustCompile(`(?m)^# expect: class=(\S+); culprit=(.*)$`)
	for _, path := range samples {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		m := expect.FindSubmatch(text)
		if m == nil {
			t.Errorf("%s says no expectation", path)
			continue
		}
		out = append(out, labelled{"hang_samples/" + strings.TrimSuffix(filepath.Base(path), ".txt"), path, classesOf(string(m[1])), ranksOfText(string(m[2]))})
	}
	return out
}

// classesOf reads "rank_stuck_host_or_gpu" as either.
func classesOf(s string) []string {
	parts := strings.Split(s, "_or_")
	if s == string(GPUStuckOrNetwork) || len(parts) == 1 {
		return []string{s}
	}
	out := []string{parts[0]}
	for _, p := range parts[1:] {
		if p == "gpu" {
			p = string(RankStuckGPU)
		}
		out = append(out, p)
	}
	return out
}

// ranksOfText reads what a person wrote about the culprit: "0,4", "1 or 2 (…)", "7 suspected", "unknown".
func ranksOfText(s string) []string {
	switch {
	case s == "unknown", s == "none", strings.Contains(s, "no single rank"):
		return []string{"-"}
	case strings.HasPrefix(s, "GPU "), strings.HasPrefix(s, "peer "), strings.HasPrefix(s, "all ranks"), strings.Contains(s, "undecidable"):
		return []string{"*"}
	}
	if a, rest, ok := strings.Cut(s, " or "); ok && len(a) == 1 {
		return []string{a, rest[:1], a + "," + rest[:1]}
	}
	s = strings.TrimPrefix(s, "pair ")
	s, _, _ = strings.Cut(s, " ")
	return []string{s}
}

func rankSet(ranks []int) string {
	if len(ranks) == 0 {
		return "-"
	}
	var s []string
	for _, r := range ranks {
		s = append(s, strconv.Itoa(r))
	}
	return strings.Join(s, ",")
}

func (c *labelled) accepts(v *Verdict) bool {
	return slices.Contains(c.classes, string(v.Class)) && (slices.Contains(c.ranks, "*") || slices.Contains(c.ranks, rankSet(v.Ranks)))
}

// TestShared diagnoses every labelled case and prints class against class. With -update the table goes into docs/diagnose.md, with what PyTorch's fr_trace says
// of the same dumps (FR_TRACE names a command for it).
func TestShared(t *testing.T) {
	cases := sharedCases(t)
	confusion := map[[2]string]int{}
	right, dumps := 0, 0
	var doc bytes.Buffer
	fmt.Fprintf(&doc, "| case | label | here | | fr_trace on its dumps |\n|---|---|---|---|---|\n")
	for _, c := range cases {
		e, err := evidence.Read([]string{c.path}, evidence.Options{})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		v := Diagnose(e)
		checkVerdict(t, c.name, v)
		confusion[[2]string{c.classes[0], string(v.Class)}]++
		mark := "✓"
		if c.accepts(v) {
			right++
		} else {
			mark = "✗"
			t.Errorf("%s: %s %s, label %v %v: %s", c.name, v.Class, rankSet(v.Ranks), c.classes, c.ranks, v.Summary)
		}
		theirs := "no dumps"
		if len(e.Dumps) > 0 {
			dumps++
			theirs = "–"
			if *update {
				theirs = frTrace(t, e)
			}
		}
		fmt.Fprintf(&doc, "| %s | %s: %s | %s: %s (%.2f) | %s | %s |\n", c.name, strings.Join(c.classes, " or "), strings.Join(c.ranks, " or "), v.Class, rankSet(v.Ranks),
			v.Confidence, mark, theirs)
	}
	fmt.Fprintf(&doc, "\n%d of %d right; %d of them have dumps. The rules were written with these cases at hand: this is a check, not a measure of accuracy.\n", right, len(cases), dumps)
	for _, key := range sortedPairs(confusion) {
		t.Logf("%-22s as %-22s %d", key[0], key[1], confusion[key])
	}
	if *update && !t.Failed() {
		updateMatrix(t, doc.String())
	}
}

func sortedPairs(m map[[2]string]int) [][2]string {
	var out [][2]string
	for k := range m {
		out = append(out, k)
	}
	slices.SortFunc(out, func(a, b [2]string) int { return strings.Compare(a[0]+" "+a[1], b[0]+" "+b[1]) })
	return out
}

func updateMatrix(t *testing.T, table string) {
	t.Helper()
	const file, begin, end = "../../docs/diagnose.md", "<!-- matrix -->", "<!-- /matrix -->"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok1 := strings.Cut(string(text), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		t.Fatalf("%s has no %s … %s", file, begin, end)
	}
	if err := os.WriteFile(file, []byte(before+begin+"\n"+table+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// frTrace is PyTorch's verdict on pickled dumps, in a few words.
func frTrace(t *testing.T, e *evidence.Evidence) string {
	t.Helper()
	command := os.Getenv("FR_TRACE")
	if command == "" {
		t.Fatal("FR_TRACE must name a command that runs PyTorch's fr_trace, for the column of the table")
	}
	dir := t.TempDir()
	n := 0
	for i := range e.Dumps {
		d := &e.Dumps[i]
		text, err := os.ReadFile(d.Where.File)
		if err != nil {
			t.Fatal(err)
		}
		if len(text) > 0 && text[0] != 0x80 {
			continue // it reads no JSON
		}
		n++
		if err := os.WriteFile(filepath.Join(dir, "trace_"+strconv.Itoa(d.Rank)), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if n == 0 {
		return "no pickles"
	}
	out, err := exec.Command("sh", "-c", command+" '"+dir+"' -p trace_").CombinedOutput()
	return frTraceWords(string(out), err)
}

func frTraceWords(out string, err error) string {
	var words []string
	for _, m := range regexp.MustCompile(`Culprit rank (\d+); Error type: ([A-Z_]+)`).FindAllStringSubmatch(out, -1) {
		words = append(words, "culprit "+m[1]+": "+strings.ToLower(m[2]))
	}
	for _, m := range regexp.MustCompile(`missing ranks: \{([\d, ]+)\}`).FindAllStringSubmatch(out, -1) {
		words = append(words, "missing "+m[1])
	}
	if strings.Contains(out, "cannot decide") {
		words = append(words, "cannot decide")
	}
	slices.Sort(words)
	words = slices.Compact(words)
	if more := len(words) - 3; more > 0 {
		words = append(words[:3], fmt.Sprintf("and %d more", more))
	}
	if err != nil {
		lines := strings.Split(strings.TrimSpace(out), "\n")
		words = append(words, "stops: "+lines[len(lines)-1][:min(60, len(lines[len(lines)-1]))])
	}
	if len(words) == 0 {
		return "nothing"
	}
	return strings.Join(words, "; ")
}
