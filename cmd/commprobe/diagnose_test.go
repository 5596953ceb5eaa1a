package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/commprobe/commprobe/bench"
	"github.com/commprobe/commprobe/hanglab"
	"github.com/commprobe/commprobe/hanglab/diagnose"
	"github.com/commprobe/commprobe/hanglab/flight"
)

// verdictOf runs `commprobe diagnose … --json -` in this process and reads its document.
func verdictOf(t *testing.T, paths ...string) *diagnose.Verdict {
	t.Helper()
	f := inProcess(append([]string{"diagnose", "--quiet", "--json", "-"}, paths...)...)
	var v diagnose.Verdict
	d := json.NewDecoder(strings.NewReader(f.stdout))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil || d.More() {
		t.Fatalf("%v: exit status %d, not one document (%v): %s%s", paths, f.code, err, f.stdout, f.stderr)
	}
	want := bench.ExitFindings
	if v.Class == diagnose.NotAHang || v.Class == diagnose.Undecided {
		want = 0
	}
	if f.code != want {
		t.Errorf("%v: exit status %d for %s", paths, f.code, v.Class)
	}
	return &v
}

// answer is what a verdict may be: "size_mismatch 3" or "not_a_hang", several with "|". "size_mismatch 2,3" names two, "*" any.
type answer string

func (a answer) takes(v *diagnose.Verdict) bool {
	for one := range strings.SplitSeq(string(a), "|") {
		class, ranks, _ := strings.Cut(strings.TrimSpace(one), " ")
		if class == string(v.Class) && (ranks == "*" || ranks == ranksText(v.Ranks)) {
			return true
		}
	}
	return false
}

func ranksText(ranks []int) string {
	var s []string
	for _, r := range slices.Sorted(slices.Values(ranks)) {
		s = append(s, strconv.Itoa(r))
	}
	return strings.Join(s, ",")
}

// evidenceOf are the three answers to one scenario: from the dumps alone, from all logs alone, from one waiting rank's log alone. ODD is the
// rank that misbehaves and PREV the one before it.
type evidenceOf struct{ dumps, logs, one answer }

func scenarioAnswers() map[string]evidenceOf {
	const (
		open   = "|undecided|gpu_stuck_or_network" // what one rank that waits can honestly say
		absent = "skipped_collective ODD|rank_stuck_host ODD|rank_crash ODD"
		fine   = "not_a_hang"
	)
	return map[string]evidenceOf{
		"control":   {fine, fine, fine},
		"size":      {"size_mismatch ODD", "size_mismatch ODD", "size_mismatch ODD" + open},
		"dtype":     {"dtype_mismatch ODD", "dtype_mismatch ODD|op_mismatch ODD", "dtype_mismatch ODD" + open}, // a log without the finished call's type
		"op":        {"op_mismatch ODD", "op_mismatch ODD", "op_mismatch ODD" + open},
		"order":     {"order_mismatch ODD", "order_mismatch ODD|op_mismatch ODD", "order_mismatch ODD|op_mismatch ODD" + open},
		"skip":      {"skipped_collective ODD", "skipped_collective ODD|size_mismatch ODD", "size_mismatch ODD|skipped_collective ODD" + open},
		"skip_stop": {absent, "skipped_collective ODD|rank_stuck_host ODD", "rank_stuck_host|skipped_collective" + open},
		"skip_same": {"skipped_collective ODD", "skipped_collective ODD", "skipped_collective|rank_crash" + open},

		"sendrecv_small": {"unpaired_p2p ODD|unpaired_p2p PREV,ODD", "unpaired_p2p ODD|undecided|not_a_hang", "not_a_hang|undecided"},
		"sendrecv_large": {"unpaired_p2p ODD|unpaired_p2p PREV,ODD", "unpaired_p2p ODD|unpaired_p2p PREV,ODD", "unpaired_p2p ODD|unpaired_p2p PREV,ODD" + open},

		"crossed": {"crossed_comms ODD", "crossed_comms ODD", "crossed_comms ODD" + open},
		"kill":    {absent, "rank_crash ODD", "rank_crash" + open},
		"exit":    {absent, "rank_crash ODD", "rank_crash" + open},
		"panic":   {absent, "rank_crash ODD", "rank_crash" + open},
		"stuck":   {absent, "rank_stuck_host ODD", "rank_stuck_host" + open},
		"stop":    {absent, "rank_stuck_host ODD", "rank_stuck_host ODD" + open},

		"gpu_busy":     {"rank_stuck_gpu ODD", "rank_stuck_gpu ODD", "rank_stuck_gpu ODD" + open},
		"lazy_skip":    {"lazy_init ODD|undecided", "lazy_init ODD", "lazy_init|lazy_init ODD|undecided"},
		"cold_comm":    {"lazy_init ODD|lazy_init|crossed_comms ODD|skipped_collective ODD" + open, "lazy_init ODD|crossed_comms ODD", "lazy_init|lazy_init ODD" + open},
		"wrong_device": {"undecided", "env_mismatch PREV,ODD|env_mismatch ODD", "env_mismatch PREV,ODD|env_mismatch ODD|undecided"},
		"straggler":    {"not_a_hang|straggler ODD", "not_a_hang|straggler ODD", fine},
		"netcut":       {"gpu_stuck_or_network|network *", "gpu_stuck_or_network|network *", "network *" + open},
		"nan":          {fine, "nan_source ODD", "not_a_hang|undecided"},
		"race":         {fine, "not_a_hang|undecided", "not_a_hang|undecided"},
	}
}

// diagnosed compares the verdicts on what a scenario left with what was planted. Evidence is a copy without the lines that tell.
func (h *hangRunOf) diagnosed(t *testing.T) {
	t.Helper()
	want, ok := scenarioAnswers()[h.report.Scenario]
	if !ok {
		t.Fatal("no expected verdict for this scenario")
	}
	if h.report.Outcome == hanglab.Finished { // no call is left open by a dump that was made too early
		for r, d := range h.dumps {
			for _, e := range d.Entries {
				if e.State != flight.Completed {
					t.Errorf("rank %d has finished, and its dump has %s at %d %s", r, e.Call.ProfilingName, e.CollectiveSeqID, e.State)
				}
			}
		}
	}
	dumps, logs := t.TempDir(), t.TempDir()
	h.copyWithoutAnswer(t, dumps, "trace_*")
	h.copyWithoutAnswer(t, logs, "*.log")
	odd := h.report.Rank
	names := strings.NewReplacer("ODD", strconv.Itoa(odd), "PREV", strconv.Itoa(odd-1))
	for _, c := range []struct {
		name, path string
		want       answer
	}{{"dumps", dumps, want.dumps}, {"logs", logs, want.logs}, {"one log", filepath.Join(logs, "rank_0.log"), want.one}} {
		t.Run(c.name, func(t *testing.T) {
			v := verdictOf(t, c.path)
			if !answer(names.Replace(string(c.want))).takes(v) {
				text := inProcess("diagnose", "--quiet", c.path).stdout
				t.Errorf("%s %v (%.2f), want %s\n%s", v.Class, v.Ranks, v.Confidence, names.Replace(string(c.want)), text)
			}
		})
	}
}

var plantedCase = regexp.MustCompile(` case=\w+`)

// copyWithoutAnswer copies files of the run's folder, without the markers that say what was planted.
func (h *hangRunOf) copyWithoutAnswer(t *testing.T, to, pattern string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(h.dir, pattern))
	if err != nil || len(files) == 0 {
		t.Fatalf("no %s in %s (%v)", pattern, h.dir, err)
	}
	for _, path := range files {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(path, ".log") {
			var kept []byte
			for line := range bytes.Lines(raw) {
				if !bytes.Contains(line, []byte("event=inject")) {
					kept = append(kept, plantedCase.ReplaceAll(line, nil)...)
				}
			}
			raw = kept
		}
		if err := os.WriteFile(filepath.Join(to, filepath.Base(path)), raw, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// Whatever the markers of a laboratory run say about the fault, the verdict is the same as without them.
func TestDiagnoseIgnoresThePlantedAnswer(t *testing.T) {
	t.Parallel()
	h := runHang(t, "stuck", "--engine", "host", "-g", "3", "-T", "2", "--rank", "1")
	clean, lying := t.TempDir(), t.TempDir()
	h.copyWithoutAnswer(t, clean, "*.log")
	h.copyWithoutAnswer(t, lying, "*.log")
	lie := "LAB_EVENT rank=0 case=size event=inject mono_ns=1 what=\"count 394240 instead of 393216\"\n"
	log, err := os.ReadFile(filepath.Join(lying, "rank_0.log"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(lying, "rank_0.log"), append(log, lie...), 0o644); err != nil {
		t.Fatal(err)
	}
	a, b := verdictOf(t, clean), verdictOf(t, lying)
	if a.Class != b.Class || ranksText(a.Ranks) != ranksText(b.Ranks) || a.Confidence != b.Confidence {
		t.Errorf("%s %v (%.2f) without the marker, %s %v (%.2f) with a false one", a.Class, a.Ranks, a.Confidence, b.Class, b.Ranks, b.Confidence)
	}
	whole := verdictOf(t, h.dir) // with the time line and the report, which hold the answer
	if whole.Class != diagnose.RankStuckHost || ranksText(whole.Ranks) != "1" {
		t.Errorf("%s %v from the whole folder", whole.Class, whole.Ranks)
	}
	for _, i := range slices.Concat(whole.Evidence, whole.Against) {
		if base := filepath.Base(i.File); base == "timeline.txt" || base == "run.json" || strings.Contains(i.Text, "event=inject") {
			t.Errorf("the evidence has %s: %s", i.File, i.Text)
		}
	}
}

// A run shows its verdict, and the report has it.
func TestHangRunShowsVerdict(t *testing.T) {
	t.Parallel()
	h := runHang(t, "skip", "--engine", "host", "-g", "4", "-T", "2", "--rank", "2")
	has(t, h.stdout, "Verdict from dumps and logs alone (right)", "A RANK DID NOT COME TO A COLLECTIVE: rank 2", "launcher.log")
	if v := h.report.Verdict; v == nil || v.Class != diagnose.SkippedCollective || h.report.Judged != hanglab.VerdictRight {
		t.Errorf("the report's verdict is %+v", v)
	}
}

// sharedCase is a labelled case beside the repository.
type sharedCase struct {
	name  string
	paths []string
	want  answer
}

func sharedCases(t *testing.T) []sharedCase {
	t.Helper()
	root := filepath.Join("..", "..", "..", "shared", "data")
	labels, err := os.ReadFile(filepath.Join(root, "labels.tsv"))
	if err != nil {
		t.Skipf("no labelled cases here: %v", err)
	}
	var cases []sharedCase
	for line := range strings.Lines(string(labels)) {
		f := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if strings.HasPrefix(line, "#") || len(f) < 3 {
			continue
		}
		var one []string
		for _, class := range strings.Split(f[1], "|") {
			for _, ranks := range strings.Split(f[2], "/") {
				one = append(one, class+" "+strings.TrimSuffix(ranks, "-"))
			}
			if class == "undecided" {
				one = append(one, class)
			}
		}
		cases = append(cases, sharedCase{f[0], []string{filepath.Join(root, f[0])}, answer(strings.Join(one, "|"))})
	}
	samples, err := filepath.Glob(filepath.Join(root, "hang_samples", "*.txt"))
	if err != nil || len(samples) == 0 || len(cases) < 10 {
		t.Fatalf("%d samples, %d labels (%v)", len(samples), len(cases), err)
	}
	for _, path := range samples {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		body, want := splitExpectation(t, string(raw))
		copied := filepath.Join(t.TempDir(), "job.txt")
		if err := os.WriteFile(copied, []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
		cases = append(cases, sharedCase{"hang_samples/" + filepath.Base(path), []string{copied}, want})
	}
	return cases
}

var expectation = regexp.MustCompile(`(?m)^# expect: class=(\w+); culprit=(.*)$`)

// splitExpectation takes the lines off that a reader must not need, and reads the answer from them.
func splitExpectation(t *testing.T, text string) (body string, want answer) {
	t.Helper()
	m := expectation.FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("no expectation in %.200s", text)
	}
	for strings.HasPrefix(text, "#") {
		_, text, _ = strings.Cut(text, "\n")
	}
	classes := []string{m[1]}
	switch m[1] {
	case "rank_stuck_host_or_gpu":
		classes = []string{"rank_stuck_host", "rank_stuck_gpu"}
	case "skipped_collective_or_straggler":
		classes = []string{"skipped_collective", "straggler"}
	}
	var all []string
	for _, class := range classes {
		for _, ranks := range culprits(m[2]) {
			all = append(all, class+" "+ranks)
		}
	}
	return text, answer(strings.Join(all, "|"))
}

var listOfRanks = regexp.MustCompile(`^(pair )?(\d+(?:,\d+)*)\b(.*)$`)

// culprits are the sets of ranks that the words of a label accept.
func culprits(words string) []string {
	if words == "none" || words == "unknown" {
		return []string{""}
	}
	if a, b, ok := strings.Cut(words, " or "); ok && !strings.Contains(a, " ") {
		b, _, _ = strings.Cut(b, " ")
		return []string{a, b, a + "," + b}
	}
	m := listOfRanks.FindStringSubmatch(words)
	if m == nil {
		return []string{"*"} // a host, a link, a cycle
	}
	if strings.Contains(m[3], "suspected") {
		return []string{m[2], ""}
	}
	return []string{m[2]}
}

// TestDiagnoseShared is every labelled case through the command.
func TestDiagnoseShared(t *testing.T) {
	t.Parallel()
	for _, c := range sharedCases(t) {
		t.Run(c.name, func(t *testing.T) {
			if v := verdictOf(t, c.paths...); !c.want.takes(v) {
				t.Errorf("%s %v (%.2f), want %s\n%s", v.Class, v.Ranks, v.Confidence, c.want, inProcess(append([]string{"diagnose", "--quiet"}, c.paths...)...).stdout)
			}
		})
	}
}

func TestDiagnoseUsage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	exists := filepath.Join(dir, "exists.json")
	if err := os.WriteFile(exists, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(dir, "empty")
	if err := os.Mkdir(empty, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "name dumps, logs, folders or archives"},
		{[]string{filepath.Join(dir, "none")}, "no such file"},
		{[]string{exists, "--json", exists}, "--force"},
		{[]string{exists, "--json", "-", "--html", "-"}, "both write -"},
		{[]string{"-", "-"}, "once only"},
		{[]string{empty}, "empty"},
		{[]string{"--live"}, "name the processes, or --job"},
		{[]string{"--live", "0"}, "from 1 on"},
		{[]string{"--live", "no-such-file"}, "no such file"},
		{[]string{"--job", exists}, "go with --live"},
	} {
		f := inProcess(append([]string{"diagnose"}, c.args...)...)
		if f.code != 2 || f.stdout != "" || !strings.Contains(f.stderr, c.want) {
			t.Errorf("%v: exit status %d, stdout %q, %q does not say %q", c.args, f.code, f.stdout, f.stderr, c.want)
		}
	}
	help := inProcess("diagnose", "--help").stdout
	has(t, help, "commprobe diagnose dumps/ --html hang.html", "kubectl logs", "--live", "Exit status: 8", "--json FILE", "--no-color")
	if top := inProcess("--help").stdout; !strings.Contains(top, "diagnose") {
		t.Error("not in commprobe --help")
	}
}

// writeDumps writes the dumps of four ranks whose third all_reduce is open, on one of them with another size. Odd -1: all are complete and equal.
func writeDumps(t *testing.T, odd int) string {
	t.Helper()
	dir := t.TempDir()
	for r := range 4 {
		d := &flight.Dump{CommLibVersion: "2.28.9", Groups: []flight.Group{{Name: "0", Desc: "default_pg", Ranks: []int{0, 1, 2, 3}}}}
		done := int64(3)
		for c := range 3 {
			n, state := int64(100*(c+1)), flight.Completed
			if c == 2 && odd >= 0 {
				state, done = flight.Started, 2
				if r == odd {
					n++
				}
			}
			d.Entries = append(d.Entries, flight.Entry{
				RecordID: int64(c), GroupName: "0", GroupDesc: "default_pg", CollectiveSeqID: int64(c + 1), OpID: int64(c + 1), ProfilingName: "nccl:all_reduce",
				TimeCreatedNs: int64(c + 1), InputSizes: [][]int64{{n}}, OutputSizes: [][]int64{{n}}, InputDtypes: []string{"Float"}, OutputDtypes: []string{"Float"},
				State: state, Frames: []flight.Frame{{Name: "train", File: "train.py", Line: 40 + c}}, TimeoutMs: 1000,
			})
		}
		d.Status = []flight.GroupStatus{{LastEnqueued: 3, LastStarted: 3, LastCompleted: done}}
		var b bytes.Buffer
		if err := d.WritePickle(&b); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("trace_%d", r)), b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// The document is the one that scripts rely on; the status tells whether somebody is accused; a page is written beside it.
func TestDiagnoseDocument(t *testing.T) {
	t.Parallel()
	dir := writeDumps(t, 2)
	page := filepath.Join(t.TempDir(), "hang.html")
	f := inProcess("diagnose", dir, "--json", "-", "--html", page)
	if f.code != bench.ExitFindings || f.stderr != "" {
		t.Fatalf("exit status %d: %s", f.code, f.stderr)
	}
	var doc struct {
		Class, Group, Op, Location, Fix string
		Ranks                           []int
		Sequence                        int
		Sizes, Next                     []string
		Confidence                      float64
		Alternatives, Against           []any
		Evidence                        []struct {
			File, Text, Says string
			Line             *int
		}
	}
	if err := json.Unmarshal([]byte(f.stdout), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.Class != "size_mismatch" || !slices.Equal(doc.Ranks, []int{2}) || doc.Sequence != 3 || doc.Op != "all_reduce" || len(doc.Sizes) != 2 ||
		!strings.Contains(doc.Location, "train.py:42") || doc.Confidence < 0.8 || doc.Fix == "" || !strings.HasPrefix(doc.Group, "0") {
		t.Errorf("%+v", doc)
	}
	if len(doc.Evidence) == 0 || doc.Alternatives == nil || doc.Against == nil || doc.Next == nil {
		t.Errorf("lists are missing: %s", f.stdout)
	}
	for _, e := range doc.Evidence {
		if e.Says == "" || e.Line == nil || !strings.HasPrefix(e.File, dir) {
			t.Errorf("evidence %+v", e)
		}
	}
	html, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	has(t, string(html), "ifferent sizes in one call: rank 2", `title="ranks 0-1, 3"`, "train.py:42", "AR 301 S")

	text := inProcess("diagnose", dir)
	has(t, text.stdout, "DIFFERENT SIZES IN ONE CALL: rank 2", "train.py:42", "> rank 2", "trace_2", "fix ")
	if n := strings.Count(text.stdout, "\n"); n > 40 || strings.Contains(text.stdout, "\x1b") || text.code != bench.ExitFindings {
		t.Errorf("exit status %d, %d lines:\n%s", text.code, n, text.stdout)
	}
	if all := inProcess("diagnose", dir, "--all").stdout; strings.Count(all, "trace_") <= strings.Count(text.stdout, "trace_") {
		t.Errorf("--all lists no more:\n%s", all)
	}
	healthy := writeDumps(t, -1)
	if v := verdictOf(t, healthy); v.Class != diagnose.NotAHang || len(v.Ranks) != 0 {
		t.Errorf("healthy dumps: %s %v", v.Class, v.Ranks)
	}
}

// feed runs diagnose with a stdin.
func feed(t *testing.T, in []byte, args ...string) finished {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(within(t, patience), self, append([]string{"diagnose"}, args...)...)
	cmd.Env = jobEnv("diagnose", nil)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &out, &errs
	err = cmd.Run()
	var status *exec.ExitError
	if err != nil && !errors.As(err, &status) {
		t.Fatal(err)
	}
	return finished{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

func tarOf(t *testing.T, dir string) []byte {
	t.Helper()
	var b bytes.Buffer
	gz := gzip.NewWriter(&b)
	w := tar.NewWriter(gz)
	if err := errors.Join(w.AddFS(os.DirFS(dir)), w.Close(), gz.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestDiagnoseStdin(t *testing.T) {
	t.Parallel()
	dir := writeDumps(t, 1)
	f := feed(t, tarOf(t, dir), "-")
	if f.code != bench.ExitFindings || f.stderr != "" {
		t.Fatalf("exit status %d: %s", f.code, f.stderr)
	}
	has(t, f.stdout, "DIFFERENT SIZES IN ONE CALL: rank 1", "trace_1")
	log := "[rank3]: Traceback (most recent call last):\n[rank3]:   File \"train.py\", line 12, in <module>\n[rank3]:     main()\n[rank3]: ValueError: bad batch\n"
	f = feed(t, []byte(log), "-", "--json", "-")
	var v diagnose.Verdict
	if err := json.Unmarshal([]byte(f.stdout), &v); err != nil || v.Class != diagnose.RankCrash || !slices.Equal(v.Ranks, []int{3}) {
		t.Errorf("exit status %d, %v: %s", f.code, err, f.stdout)
	}
	if f := feed(t, nil, "-"); f.code != 0 || !strings.Contains(f.stdout, "CANNOT TELL") {
		t.Errorf("an empty stdin: exit status %d\n%s%s", f.code, f.stdout, f.stderr)
	}
}

// Hostile input is refused by name; what lies beside it is read all the same.
func TestDiagnoseHostile(t *testing.T) {
	t.Parallel()
	bomb := filepath.Join(t.TempDir(), "bomb.zip")
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	w, err := z.Create("huge.log")
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.Repeat([]byte("step 1: loss 0.5\n"), 1<<16)
	for range 256 {
		if _, err := w.Write(lines); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(z.Close(), os.WriteFile(bomb, b.Bytes(), 0o644)); err != nil {
		t.Fatal(err)
	}
	pickle := filepath.Join(t.TempDir(), "trace_0")
	executed := filepath.Join(t.TempDir(), "executed")
	code := "cos\nsystem\n(S'touch " + executed + "'\ntR."
	if err := os.WriteFile(pickle, []byte(code), 0o644); err != nil {
		t.Fatal(err)
	}
	upward := filepath.Join(t.TempDir(), "up.tar")
	b.Reset()
	tw := tar.NewWriter(&b)
	body := []byte("[rank0]: ValueError: x\n")
	if err := errors.Join(tw.WriteHeader(&tar.Header{Name: "../../etc/\x1b[2Jrank_0.log", Size: int64(len(body)), Mode: 0o644, Typeflag: tar.TypeReg}), writeAll(tw, body),
		tw.Close(), os.WriteFile(upward, b.Bytes(), 0o644)); err != nil {
		t.Fatal(err)
	}
	dumps := writeDumps(t, 3)
	for _, bad := range []string{bomb, upward} {
		f := inProcess("diagnose", dumps, bad)
		if f.code != bench.ExitFindings || !strings.Contains(f.stdout, "rank 3") || !strings.Contains(f.stderr, filepath.Base(bad)) {
			t.Errorf("%s: exit status %d, stderr %q\n%s", filepath.Base(bad), f.code, f.stderr, f.stdout)
		}
		if strings.Contains(f.stdout+f.stderr, "\x1b") {
			t.Errorf("%s: control characters reach the screen: %q", filepath.Base(bad), f.stderr)
		}
		if f := inProcess("diagnose", bad); f.code != 2 || f.stdout != "" || strings.Contains(f.stderr, "\x1b") {
			t.Errorf("%s alone: exit status %d, stdout %q, stderr %q", filepath.Base(bad), f.code, f.stdout, f.stderr)
		}
	}
	f := inProcess("diagnose", dumps, pickle)
	if f.code != bench.ExitFindings || !strings.Contains(f.stdout, "rank 3") {
		t.Errorf("a pickle of code: exit status %d, %s\n%s", f.code, f.stderr, f.stdout)
	}
	if _, err := os.Stat(executed); err == nil {
		t.Error("the pickle was executed")
	}
	// A log draws on nobody's terminal.
	evil := filepath.Join(t.TempDir(), "rank_0.log")
	text := "Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\nValueError: \x1b]0;owned\x07\x1b[2J\n"
	if err := os.WriteFile(evil, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if f := inProcess("diagnose", evil, "--all"); strings.ContainsAny(f.stdout+f.stderr, "\x1b\x07") {
		t.Errorf("control characters reach the screen: %q", f.stdout)
	}
}

func writeAll(w io.Writer, b []byte) error {
	_, err := w.Write(b)
	return err
}

// A job that hangs is asked, and goes on hanging: nothing of it is ended or stopped.
func TestDiagnoseLive(t *testing.T) {
	t.Parallel()
	dir, kept := t.TempDir(), filepath.Join(t.TempDir(), "kept")
	sit(t)
	j := start(t, nil, "hang", "run", "stuck", "--engine", "host", "-g", "3", "-T", "3", "--mode", "0", "--fuse", "60", "--out", dir)
	if !eventually(patience, func() bool {
		log, err := os.ReadFile(filepath.Join(dir, "rank_0.log"))
		return err == nil && bytes.Contains(log, []byte("event=dump"))
	}) {
		t.Fatal("nothing hung")
	}
	before := j.processes()
	v := verdictOf(t, "--live", "--job", strconv.Itoa(j.worker(t, 0).pid), "--keep", kept)
	if ranksText(v.Ranks) != "2" || v.Class != diagnose.RankStuckHost && v.Class != diagnose.SkippedCollective {
		t.Errorf("%s %v: %s", v.Class, v.Ranks, v.Summary)
	}
	if after := j.processes(); len(after) != len(before) {
		t.Errorf("%d processes before, %d after", len(before), len(after))
	}
	if again := verdictOf(t, kept); again.Class != v.Class || ranksText(again.Ranks) != "2" {
		t.Errorf("what was kept gives %s %v", again.Class, again.Ranks)
	}
	if err := syscall.Kill(j.cmd.Process.Pid, syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code := j.exit(t, patience); code != 130 {
		t.Errorf("exit status %d after an interrupt", code)
	}
	j.nothingLeft(t, 10*time.Second)
}
