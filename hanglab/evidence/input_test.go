package evidence

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

const (
	oomLine  = "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB.\n"
	killLine = "[rank4]: Killed\n"
)

func mustRead(t *testing.T, paths []string, opt Options) *Evidence {
	t.Helper()
	e, err := Read(paths, opt)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// told prints inputs and facts in one line each.
func told(e *Evidence) (out []string) {
	for _, in := range e.Inputs {
		s := in.Name + " " + in.Kind
		if in.Rank >= 0 {
			s += fmt.Sprintf(" rank %d", in.Rank)
		}
		if in.Err != "" {
			s += ": " + in.Err
		}
		out = append(out, s)
	}
	for _, f := range e.Facts {
		out = append(out, fmt.Sprintf("%s:%d %s %d", f.Where.File, f.Where.Line, f.Kind, f.Rank))
	}
	for _, d := range e.Dumps {
		s := fmt.Sprintf("dump %s %d", d.Where.File, d.Rank)
		if d.Err != nil {
			s += ": " + d.Err.Error()
		}
		out = append(out, s)
	}
	return out
}

type member struct {
	name string
	data []byte
	typ  byte
}

func tarOf(t testing.TB, members ...member) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, m := range members {
		h := &tar.Header{Name: m.name, Size: int64(len(m.data)), Mode: 0o644, Typeflag: m.typ}
		if m.typ == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Typeflag == tar.TypeSymlink || h.Typeflag == tar.TypeLink {
			h.Linkname = "/etc/passwd"
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(m.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func zipOf(t testing.TB, members ...member) []byte {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, m := range members {
		h := &zip.FileHeader{Name: m.name, Method: zip.Deflate}
		if m.typ == tar.TypeSymlink {
			h.SetMode(fs.ModeSymlink | 0o777)
		}
		f, err := w.CreateHeader(h)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(m.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func gzOf(t testing.TB, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestReadMix reads files, a folder, archives in one another, and standard input, each by what is in it and not by its name.
func TestReadMix(t *testing.T) {
	pickle, err := os.ReadFile("../flight/testdata/sample_0.pickle")
	if err != nil {
		t.Fatal(err)
	}
	json, err := os.ReadFile("../flight/testdata/sample_0.json")
	if err != nil {
		t.Fatal(err)
	}
	files := fstest.MapFS{
		"run/trace_0":             {Data: pickle},
		"run/json_0":              {Data: json},
		"run/trace_1":             {},
		"run/rank_2.log":          {Data: []byte("Killed\n")},
		"run/empty.log":           {},
		"run/run.json":            {Data: []byte("{\n  \"scenario\": \"size\",\n  \"engine\": \"host\",\n \"outcome\": \"hung\"\n}")},
		"run/timeline.txt":        {Data: []byte("first independent cause: #3, rank 3: fault planted\n" + killLine)},
		"run/README.txt":          {Data: []byte(killLine)},
		"run/train.py":            {Data: []byte(killLine)},
		"run/weights.pt":          {Data: zipOf(t, member{name: "archive/data.pkl", data: pickle}, member{name: "archive/log", data: []byte(killLine)})},
		"run/other.pkl":           {Data: []byte("\x80\x02}q\x00X\x01\x00\x00\x00aq\x01K\x01s.")},
		"run/core":                {Data: []byte("\x7fELF\x02\x01\x01\x00" + killLine)},
		"run/fr_trace.txt":        {Data: []byte("Not all ranks joining collective, sequence number: 7\n" + killLine)},
		"run/.cache/x.log":        {Data: []byte(killLine)},
		"logs.tar.gz":             {Data: gzOf(t, tarOf(t, member{name: "a/node1.log", data: []byte(oomLine)}, member{name: "a/rank_5.log", data: []byte("x\nKilled\n")}))},
		"nested.bin":              {Data: zipOf(t, member{name: "in.tar", data: tarOf(t, member{name: "x.log.gz", data: gzOf(t, []byte(killLine))})})},
		"slurm-4711.out":          {Data: []byte("Killed\n")},
		"packed.zst":              {Data: []byte("\x28\xb5\x2f\xfd\x00")},
		"attempt_0/6/stderr.log":  {Data: []byte("Killed\n")},
		"torn":                    {Data: append([]byte(strings.Repeat("\x00", 3000)), oomLine...)},
		"windows.log":             {Data: []byte("\xef\xbb\xbf[rank3]: hello\r\n[rank8]: Killed\r\n")},
		"named/README.md":         {Data: []byte(killLine)},
		"rank0_is_stuck_here.txt": {Data: []byte("Killed\n")},
	}
	e := mustRead(t, []string{"run", "logs.tar.gz", "nested.bin", "slurm-4711.out", "packed.zst", "attempt_0", "torn", "windows.log", "named/README.md", "rank0_is_stuck_here.txt", "-"},
		Options{FS: files, Stdin: strings.NewReader(killLine)})
	want := []string{
		"run/README.txt document", "run/core binary", "run/empty.log empty", "run/fr_trace.txt fr_trace", "run/json_0 flight_json rank 0",
		"run/other.pkl pickle: at byte 17: not a flight recorder dump: it has none of the keys of a dump", "run/rank_2.log log rank 2", "run/run.json run", "run/timeline.txt timeline",
		"run/trace_0 flight_pickle rank 0", "run/trace_1 flight_pickle rank 1", "run/train.py source", "run/weights.pt checkpoint",
		"logs.tar.gz!a/node1.log log", "logs.tar.gz!a/rank_5.log log rank 5", "nested.bin!in.tar!x.log.gz log", "slurm-4711.out log",
		"packed.zst unknown: packed with zstd, which is not read here: unpack it first (zstd -d)", "attempt_0/6/stderr.log log rank 6", "torn log", "windows.log log",
		"named/README.md log", "rank0_is_stuck_here.txt log", "stdin log",
		"run/rank_2.log:1 ended 2", "logs.tar.gz!a/node1.log:1 cuda_oom 3", "logs.tar.gz!a/rank_5.log:2 ended 5", "nested.bin!in.tar!x.log.gz:1 ended 4", "slurm-4711.out:1 ended -1",
		"attempt_0/6/stderr.log:1 ended 6", "torn:1 cuda_oom 3", "windows.log:2 ended 8", "named/README.md:1 ended 4", "rank0_is_stuck_here.txt:1 ended -1", "stdin:1 ended 4",
		"dump run/trace_0 0", "dump run/trace_1 1: " + ErrEmpty.Error(),
	}
	if diff := cmp.Diff(want, told(e)); diff != "" {
		t.Error(diff)
	}
}

// TestHostile: each bad input says what is wrong with it, and the good one beside it is read.
func TestHostile(t *testing.T) {
	good := member{name: "good.log", data: []byte(killLine)}
	zeros := bytes.Repeat([]byte("0"), 100<<20)
	deep := []byte(killLine)
	for range 4 {
		deep = gzOf(t, deep)
	}
	for name, c := range map[string]struct {
		data []byte
		want string
		good bool // the member beside it is read
	}{
		"tar with a path that leads out": {tarOf(t, member{name: "../../etc/cron.d/x", data: []byte(oomLine)}, good), "refused: a path that leads out of the archive", true},
		"tar with an absolute path":      {tarOf(t, member{name: "/etc/passwd", data: []byte(oomLine)}, good), "refused: an absolute path", true},
		"zip with a path that leads out": {zipOf(t, member{name: "a/../../x", data: []byte(oomLine)}, good), "refused: a path that leads out of the archive", true},
		"zip with a Windows path":        {zipOf(t, member{name: `C:\x`, data: []byte(oomLine)}, good), "refused: an absolute path", true},
		"zip with a backslash path":      {zipOf(t, member{name: `..\..\x`, data: []byte(oomLine)}, good), "refused: a path that leads out of the archive", true},
		"symbolic link in a tar":         {tarOf(t, member{name: "link", typ: tar.TypeSymlink}, good), "refused: a link, which is not followed", true},
		"hard link in a tar":             {tarOf(t, member{name: "link", typ: tar.TypeLink}, good), "refused: a link, which is not followed", true},
		"symbolic link in a zip":         {zipOf(t, member{name: "link", data: []byte("/etc/passwd"), typ: tar.TypeSymlink}, good), "refused: a link, which is not followed", true},
		"device in a tar":                {tarOf(t, member{name: "dev", typ: tar.TypeChar}, good), "refused: a device, pipe or socket", true},
		"pipe in a tar":                  {tarOf(t, member{name: "fifo", typ: tar.TypeFifo}, good), "refused: a device, pipe or socket", true},
		"zip bomb":                       {zipOf(t, good, member{name: "bomb.log", data: zeros}), "a bomb rather than a log", true},
		"gzip bomb":                      {gzOf(t, zeros), "a bomb rather than a log", false},
		"bomb in a bomb":                 {gzOf(t, gzOf(t, zeros)), "a bomb rather than a log", false},
		"four archives deep":             {deep, "an archive within 3 others: not read", false},
		"cut gzip":                       {gzOf(t, []byte(strings.Repeat(killLine, 5000)))[:60], "unexpected EOF", false},
		"cut tar":                        {tarOf(t, good, member{name: "more.log", data: make([]byte, 4000)})[:1600], "breaks off or is damaged", true},
		"damaged zip":                    {append([]byte("PK\x03\x04"), make([]byte, 100)...), "zip: not a valid zip file", false},
	} {
		t.Run(name, func(t *testing.T) {
			e := mustRead(t, []string{"x"}, Options{FS: fstest.MapFS{"x": {Data: c.data}}})
			var errs []string
			read := false
			for _, in := range e.Inputs {
				if in.Err != "" {
					errs = append(errs, in.Err)
				}
				read = read || strings.HasSuffix(in.Name, "!good.log") && in.Err == ""
			}
			if len(errs) != 1 || !strings.Contains(errs[0], c.want) {
				t.Errorf("errors are %q, want %q", errs, c.want)
			}
			if read != c.good {
				t.Errorf("the good member was read: %v", read)
			}
			for _, f := range e.Facts {
				if f.Kind == CUDAOOM {
					t.Errorf("%s was read although it is refused", f.Where.File)
				}
			}
		})
	}
}

// ones is an endless line.
type ones struct{ left int64 }

func (o *ones) Read(p []byte) (int, error) {
	if o.left == 0 {
		return 0, io.EOF
	}
	n := int64(copy(p[:min(int64(len(p)), o.left)], bytes.Repeat([]byte{'1'}, int(min(int64(len(p)), o.left)))))
	o.left -= n
	return int(n), nil
}

// TestGigabyteLine: the rest of a long line is passed over in bounded memory, said once, and what follows is read under its own line number.
func TestGigabyteLine(t *testing.T) {
	in := io.MultiReader(strings.NewReader(oomLine), &ones{1 << 30}, strings.NewReader("\n"+killLine), &ones{1 << 20}, strings.NewReader("\n"+killLine))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	e := mustRead(t, []string{"-"}, Options{Stdin: in})
	runtime.ReadMemStats(&after)
	want := []string{"stdin log", "stdin:1 cuda_oom 3", "stdin:3 ended 4", "stdin:5 ended 4"}
	if diff := cmp.Diff(want, told(e)); diff != "" {
		t.Error(diff)
	}
	if n := e.Inputs[0].Notes; len(n) != 1 || !strings.Contains(n[0], "line 2 is longer than 64 KiB") {
		t.Errorf("notes are %q", n)
	}
	if held := int64(after.HeapAlloc) - int64(before.HeapAlloc); held > 64<<20 {
		t.Errorf("%d MiB more are held", held>>20)
	}
}

// TestFactsBounded: memory grows with facts up to a bound; the first and the last are kept, in order, and what is left out is said.
func TestFactsBounded(t *testing.T) {
	var b bytes.Buffer
	const n = factsFirst + factsLast + 1000
	for i := range n {
		fmt.Fprintf(&b, "[rank%d]: Killed\n", i)
	}
	b.WriteString(oomLine)
	e := mustRead(t, []string{"x"}, Options{FS: fstest.MapFS{"x": {Data: b.Bytes()}}})
	if len(e.Facts) != factsFirst+factsLast+1 {
		t.Fatalf("%d facts", len(e.Facts))
	}
	if !slices.IsSortedFunc(e.Facts, func(a, b Fact) int { return a.Where.Line - b.Where.Line }) {
		t.Error("facts are not in order")
	}
	if first, last := e.Facts[0].Rank, e.Facts[len(e.Facts)-2].Rank; first != 0 || last != n-1 {
		t.Errorf("first is of rank %d, last of %d", first, last)
	}
	if notes := e.Inputs[0].Notes; len(notes) != 1 || !strings.HasPrefix(notes[0], "1000 facts of kind ended") {
		t.Errorf("notes are %q", notes)
	}
}

// TestReadErrors: what is not there is an error, as is nothing at all; what cannot be opened is told and reading goes on.
func TestReadErrors(t *testing.T) {
	if _, err := Read([]string{"nowhere"}, Options{FS: fstest.MapFS{}}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing path: %v", err)
	}
	if _, err := Read([]string{"-"}, Options{}); err == nil {
		t.Error("no standard input, and no error")
	}
	empty := t.TempDir()
	if _, err := Read([]string{empty}, Options{}); err == nil || !strings.Contains(err.Error(), "no files in") {
		t.Errorf("empty folder: %v", err)
	}
	broken := io.MultiReader(strings.NewReader(killLine), badReader{})
	e := mustRead(t, []string{"-"}, Options{Stdin: broken})
	if len(e.Facts) != 1 || e.Inputs[0].Err != "the disk is gone" {
		t.Errorf("a reader that fails: %v", told(e))
	}
	e = mustRead(t, []string{"."}, Options{FS: fstest.MapFS{"a": {Data: []byte("x")}, "b": {Data: []byte("x")}, "c": {Data: []byte("x")}}, MaxFiles: 2})
	if last := e.Inputs[len(e.Inputs)-1]; len(e.Inputs) != 3 || !strings.Contains(last.Err, "more than 2 files") {
		t.Errorf("too many files: %v", told(e))
	}
	e = mustRead(t, []string{"a"}, Options{FS: fstest.MapFS{"a": {Data: []byte(strings.Repeat(killLine, 10000))}}, MaxFileBytes: 1000})
	if !strings.Contains(e.Inputs[0].Err, "more than 1000 bytes") || len(e.Facts) == 0 {
		t.Errorf("too long a file: %q, %d facts", e.Inputs[0].Err, len(e.Facts))
	}
}

type badReader struct{}

func (badReader) Read([]byte) (int, error) { return 0, errors.New("the disk is gone") }

// TestFolderOfMachine reads a real folder: links to files are followed, links to folders and pipes are not.
func TestFolderOfMachine(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("rank_1.log", "Killed\n")
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	write("sub/rank_2.log", "Killed\n")
	for name, to := range map[string]string{"rank_3.log": "rank_1.log", "loop": ".", "dangling": "nowhere"} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	var tells atomic.Int32
	e := mustRead(t, []string{dir}, Options{Progress: func(string, int64) { tells.Add(1) }})
	want := map[int]int{1: 1, 2: 1, 3: 1}
	got := map[int]int{}
	for _, f := range e.Facts {
		got[f.Rank]++
	}
	if !maps.Equal(want, got) || tells.Load() == 0 {
		t.Errorf("facts by rank %v, %d calls of Progress; %v", got, tells.Load(), told(e))
	}
}

func TestLogRank(t *testing.T) {
	for name, want := range map[string]int{
		"rank_3.log": 3, "logs/rank12.out": 12, "7.log": 7, "node02_5.log": 5, "stderr_4": 4, "x/attempt_1/3/stdout.log": 3, "job-rank-6.txt": 6, "a.zip!b/rank_9.log.gz": 9, "rank3_stderr.log": 3,
		"slurm-12345.out": -1, "slurm-77.out": -1, "nccl.vm.1735.log": -1, "train.log": -1, "worker-3.log": -1, "2026.log": 2026, "rank0_is_stuck.txt": -1, "stdout.log": -1, "out.txt": -1, "frank.log": -1,
	} {
		got, ok := logRank(name)
		if !ok {
			got = -1
		}
		if got != want {
			t.Errorf("%s: rank %d, want %d", name, got, want)
		}
	}
}

func TestDumpRank(t *testing.T) {
	for name, want := range map[string]int{"trace_1": 1, "nccl_trace_rank_node02_5": 5, "rank_3.json": 3, "a.tar!d/_dump_14": 14, "rank_3.log": -1, "stderr_3": -1, "slurm_3": -1, "core": -1} {
		got, ok := dumpRank(name)
		if !ok {
			got = -1
		}
		if got != want {
			t.Errorf("%s: rank %d, want %d", name, got, want)
		}
	}
}

// TestLongDocuments: JSON on one line is read whole, however long it is.
func TestLongDocuments(t *testing.T) {
	var ranks, threads []string
	for i := range 2000 {
		ranks = append(ranks, fmt.Sprintf(`{"rank":%d,"host":"10.0.0.1","pid":%d,"cuda_dev":0,"nvml_dev":0,"status":{"init_state":0,"async_error":0,"finalize_called":false,"destroy_flag":false,"abort_flag":false},"collective_counts":{"Broadcast":0,"Reduce":0,"AllGather":0,"ReduceScatter":0,"AllReduce":7}}`, i, 100+i))
		threads = append(threads, fmt.Sprintf(`{"pid":9,"thread_id":%d,"thread_name":"T","active":false,"owns_gil":false,"frames":[{"name":"wait","filename":"/x/threading.py","short_filename":"threading.py","line":302}]}`, i))
	}
	report := `{"nccl_version":"2.28.9","cuda_runtime_version":13000,"cuda_driver_version":13000,"timestamp":"2026-01-02 03:04:05","communicators_count":1,"communicators":[{"hash":"0x1","secondary_hash":"0x1:0x2","size":2000,"ranks_count":2000,"missing_ranks_count":0,"ranks":[` +
		strings.Join(ranks, ",") + `],"missing_ranks":[]}],"ras":{"collection_time_sec":0.1,"timeouts_count":0}}`
	e := mustRead(t, []string{"."}, Options{FS: fstest.MapFS{"a": {Data: []byte(report)}, "b": {Data: []byte("[" + strings.Join(threads, ",") + "]")}}})
	if diff := cmp.Diff([]string{"a ras_json", "b pyspy"}, told(e)); diff != "" {
		t.Error(diff)
	}
	if len(e.RAS) != 1 || len(e.RAS[0].Report.Communicators) != 1 || len(e.RAS[0].Report.Communicators[0].RankState) != 2000 {
		t.Errorf("the report is %+v", e.RAS)
	}
	if len(e.Stacks) != 1 || len(e.Stacks[0].Threads) != 2000 {
		t.Errorf("%d stacks", len(e.Stacks))
	}
}
