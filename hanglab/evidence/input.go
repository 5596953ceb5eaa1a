package evidence

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/commprobe/commprobe/nccl/ras"
)

// Options says from where to read and how much. The zero value is good.
type Options struct {
	Stdin    io.Reader                      // what "-" stands for
	FS       fs.FS                          // where paths lead, for tests; nil: the machine's own
	Progress func(name string, bytes int64) // called now and then from several goroutines, with what has been read of an input so far

	MaxFiles     int   // in all; default 100,000
	MaxFileBytes int64 // of one input or member, unpacked; default 256 GiB
	MaxRatio     int64 // by which an archive may grow, once it has given 64 MiB; default 400
	MaxDepth     int   // of archives in one another; default 3
	Workers      int   // default: one a processor
}

// Defaults and fixed limits of inputs.
const (
	defaultMaxFiles = 100_000
	defaultMaxBytes = 256 << 30
	defaultMaxRatio = 400
	defaultMaxDepth = 3
	ratioFrom       = 64 << 20
	inputBuffer     = maxLogLine + 4096
)

func (o *Options) fill() {
	if o.MaxFiles <= 0 {
		o.MaxFiles = defaultMaxFiles
	}
	if o.MaxFileBytes <= 0 {
		o.MaxFileBytes = defaultMaxBytes
	}
	if o.MaxRatio <= 0 {
		o.MaxRatio = defaultMaxRatio
	}
	if o.MaxDepth <= 0 {
		o.MaxDepth = defaultMaxDepth
	}
	if o.Workers <= 0 {
		o.Workers = runtime.GOMAXPROCS(0)
	}
}

// Read reads files, all files below folders, archives (tar, zip, gz, bz2), and stdin for "-", each recognised by its content. What cannot be read, or only in
// part, says so in its Input, and reading goes on; only a path that is not there, or no input at all, is an error.
func Read(paths []string, opt Options) (*Evidence, error) {
	opt.fill()
	r := &reader{opt: opt, pool: NewFlightPool()}
	for _, p := range paths {
		if err := r.find(p); err != nil {
			return nil, err
		}
	}
	if len(r.found) == 0 {
		return nil, fmt.Errorf("no files in %s", strings.Join(paths, ", "))
	}
	parts := r.readAll()
	out := &Evidence{}
	for _, p := range parts {
		out.Inputs = append(out.Inputs, p.Inputs...)
		out.Dumps = append(out.Dumps, p.Dumps...)
		out.Facts = append(out.Facts, p.Facts...)
		out.Comms = append(out.Comms, p.Comms...)
		out.RAS = append(out.RAS, p.RAS...)
		out.Stacks = append(out.Stacks, p.Stacks...)
	}
	if r.tooMany {
		out.Inputs = append(out.Inputs, Input{Name: strings.Join(paths, ", "), Kind: "unknown", Rank: -1,
			Err: fmt.Sprintf("more than %d files: the rest was not read", opt.MaxFiles)})
	}
	finishEvidence(out)
	return out, nil
}

// reader is one Read.
type reader struct {
	opt     Options
	pool    *FlightPool
	found   []place
	named   map[string]bool // what was found, by its whole path: naming a folder and a file in it reads the file once
	tooMany bool
	members atomic.Int64 // of archives
}

// place is an input that was found.
type place struct {
	name     string
	inFolder bool // a file that nobody named: what is no evidence by its name is passed over
	stdin    bool
	err      error
}

func (r *reader) stat(name string) (fs.FileInfo, error) {
	if r.opt.FS != nil {
		return fs.Stat(r.opt.FS, name)
	}
	return os.Stat(name)
}

func (r *reader) openFile(name string) (fs.File, error) {
	if r.opt.FS != nil {
		return r.opt.FS.Open(name)
	}
	return os.Open(name)
}

func (r *reader) walk(root string, fn fs.WalkDirFunc) error {
	if r.opt.FS != nil {
		return fs.WalkDir(r.opt.FS, root, fn)
	}
	return filepath.WalkDir(root, fn)
}

// find adds a path, or what is below it.
func (r *reader) find(name string) error {
	if name == "-" {
		if r.opt.Stdin == nil {
			return errors.New(`"-" stands for standard input, and there is none`)
		}
		r.found = append(r.found, place{name: "stdin", stdin: true})
		return nil
	}
	info, err := r.stat(name)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		r.addPlace(place{name: name})
		return nil
	}
	return r.walk(name, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			r.addPlace(place{name: p, inFolder: true, err: err})
			if d != nil && d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if p != name && strings.HasPrefix(d.Name(), ".") {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if d.IsDir() {
			return nil
		}
		if !r.isFile(p, d) {
			return nil
		}
		if !r.addPlace(place{name: p, inFolder: true}) {
			return fs.SkipAll
		}
		return nil
	})
}

// isFile follows links to files, because folders of logs often hold them; a link to a folder could lead round in circles. Devices, sockets and
// pipes of a folder are left alone: opening one may wait for ever.
func (r *reader) isFile(name string, d fs.DirEntry) bool {
	if d.Type().IsRegular() {
		return true
	}
	if d.Type()&fs.ModeSymlink == 0 {
		return false
	}
	info, err := r.stat(name)
	return err == nil && info.Mode().IsRegular()
}

func (r *reader) addPlace(p place) bool {
	if len(r.found) >= r.opt.MaxFiles {
		r.tooMany = true
		return false
	}
	if key := r.whole(p.name); !r.named[key] {
		if r.named == nil {
			r.named = map[string]bool{}
		}
		r.named[key] = true
		r.found = append(r.found, p)
	}
	return true
}

// whole is a file's path from the root. A link has a name of its own, which may say another rank.
func (r *reader) whole(name string) string {
	if r.opt.FS != nil {
		return path.Clean(name)
	}
	if abs, err := filepath.Abs(name); err == nil {
		name = abs
	}
	return name
}

// readAll reads what was found, several at once, and gives the parts in the order of the places.
func (r *reader) readAll() []*Evidence {
	parts := make([]*Evidence, len(r.found))
	next := atomic.Int64{}
	var all sync.WaitGroup
	for range min(r.opt.Workers, len(r.found)) {
		all.Go(func() {
			w := &worker{reader: r}
			for {
				i := int(next.Add(1)) - 1
				if i >= len(r.found) {
					return
				}
				parts[i] = w.readPlace(r.found[i])
			}
		})
	}
	all.Wait()
	return parts
}

// worker reads one input after the other.
type worker struct {
	*reader
	out  *Evidence
	buf  *bufio.Reader // of a plain file
	year int           // of the present input, from its time
}

func (w *worker) readPlace(p place) *Evidence {
	w.out = &Evidence{}
	if p.err != nil {
		w.failed(p.name, 0, p.err)
		return w.out
	}
	if p.stdin {
		w.year = time.Now().Year()
		w.readStream(w.opt.Stdin, source0(p), nil)
		return w.out
	}
	if kind := kindByName(p.name); p.inFolder && kind != "" {
		w.out.Inputs = append(w.out.Inputs, Input{Name: p.name, Kind: kind, Rank: -1})
		return w.out
	}
	f, err := w.openFile(p.name)
	if err != nil {
		w.failed(p.name, 0, err)
		return w.out
	}
	defer f.Close()
	w.year = time.Now().Year()
	if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
		w.year = info.ModTime().Year()
	}
	w.readStream(f, source0(p), f)
	return w.out
}

func (w *worker) failed(name string, bytes int64, err error) {
	w.out.Inputs = append(w.out.Inputs, Input{Name: name, Kind: "unknown", Bytes: bytes, Rank: -1, Err: err.Error()})
}

// leaf is one input while it is unpacked: a file, or a member at some depth of archives.
type leaf struct {
	name     string
	inFolder bool
	depth    int     // of archives around it
	budget   *budget // of the outermost archive
}

func source0(p place) leaf { return leaf{name: p.name, inFolder: p.inFolder, budget: &budget{}} }

// budget counts what went into and came out of an archive and all archives in it.
type budget struct{ in, out int64 }

// counted counts bytes, and refuses what grows beyond measure.
type counted struct {
	r     io.Reader
	n     int64
	most  int64
	in    *int64 // counted into as well, may be nil
	grown func(n int64) error
	tell  func(n int64)
	told  int64
}

const tellEvery = 64 << 20

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	if c.in != nil {
		*c.in += int64(n)
	}
	if c.tell != nil && c.n-c.told >= tellEvery {
		c.told = c.n
		c.tell(c.n)
	}
	if c.n > c.most {
		return n, fmt.Errorf("more than %d bytes: the rest was not read", c.most)
	}
	if c.grown != nil {
		if bomb := c.grown(int64(n)); bomb != nil {
			return n, bomb
		}
	}
	return n, err
}

// readStream recognises what a stream is, and reads it. file is the same as a file, for formats that are read from their end.
func (w *worker) readStream(r io.Reader, l leaf, file fs.File) {
	count := &counted{r: r, most: w.opt.MaxFileBytes}
	if l.depth == 0 {
		count.in = &l.budget.in
	}
	if w.opt.Progress != nil {
		count.tell = func(n int64) { w.opt.Progress(l.name, n) }
	}
	var buf *bufio.Reader
	if l.depth == 0 {
		if w.buf == nil {
			w.buf = bufio.NewReaderSize(nil, inputBuffer)
		}
		buf = w.buf
		buf.Reset(count)
	} else {
		buf = bufio.NewReaderSize(count, inputBuffer)
	}
	head, err := buf.Peek(headBytes)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && len(head) == 0 {
		w.failed(l.name, count.n, err)
		return
	}
	w.dispatch(sniff(head), buf, l, file, count)
	if w.opt.Progress != nil {
		w.opt.Progress(l.name, count.n)
	}
}

func (w *worker) dispatch(kind string, buf *bufio.Reader, l leaf, file fs.File, count *counted) {
	switch kind {
	case "gzip", "bzip2", "tar", "zip":
		w.unpack(kind, buf, l, file)
	case kindEmpty:
		w.empty(l)
	case kindPickle:
		w.dump(buf, l, "flight_pickle", count)
	case kindFlightJSON:
		w.dump(buf, l, "flight_json", count)
	case kindJSON:
		if !w.document(buf, l, count) {
			w.log(buf, l, count)
		}
	case kindLog:
		w.log(buf, l, count)
	case "xz", "zstd", "lz4":
		w.failed(l.name, count.n, fmt.Errorf("packed with %s, which is not read here: unpack it first (%s -d)", kind, kind))
	default: // known, and no evidence
		w.out.Inputs = append(w.out.Inputs, Input{Name: l.name, Kind: kind, Bytes: count.n, Rank: -1})
	}
}

// empty keeps a dump that was never written as evidence: the process was killed.
func (w *worker) empty(l leaf) {
	in := Input{Name: l.name, Kind: "empty", Rank: -1}
	if rank, ok := dumpRank(l.name); ok {
		in.Kind, in.Rank = "flight_pickle", rank
		w.out.Dumps = append(w.out.Dumps, Dump{Where: Where{File: l.name}, Rank: rank, Err: ErrEmpty})
	}
	w.out.Inputs = append(w.out.Inputs, in)
}

// dump reads a flight recorder dump. A pickle may be anything else.
func (w *worker) dump(r io.Reader, l leaf, kind string, count *counted) {
	d, err := w.pool.Read(r, l.name)
	in := Input{Name: l.name, Kind: kind, Bytes: count.n, Rank: -1}
	if err != nil {
		in.Err = strings.TrimPrefix(err.Error(), l.name+": ") // the input has its name
	}
	if errors.Is(err, ErrNotFlight) {
		in.Kind = "pickle"
		if kind == "flight_json" {
			in.Kind = "json"
		}
		w.out.Inputs = append(w.out.Inputs, in)
		return
	}
	rank, ok := RankOfName(memberBase(l.name))
	if !ok {
		rank = -1
	}
	in.Rank = rank
	w.out.Dumps = append(w.out.Dumps, Dump{Where: Where{File: l.name}, Rank: rank, Data: d, Err: err})
	w.out.Inputs = append(w.out.Inputs, in)
}

// document reads a JSON document that is one long line, which the log's reader would cut. It tells whether that was so.
func (w *worker) document(buf *bufio.Reader, l leaf, count *counted) bool {
	head, _ := buf.Peek(inputBuffer)
	if len(head) < inputBuffer || bytes.IndexByte(head, '\n') >= 0 {
		return false
	}
	isRAS := containsAny(head[:headBytes], `"communicators_count"`, `"nccl_version"`)
	isPySpy := containsAny(head[:headBytes], `"thread_id"`, `"owns_gil"`)
	all, err := io.ReadAll(io.LimitReader(buf, maxBlock)) // from here on head is no more
	in := Input{Name: l.name, Kind: "json", Bytes: count.n, Rank: -1}
	c := newLogContext(w.out, l.name, -1, w.year)
	at := Where{l.name, 1}
	if isRAS {
		if report, err := ras.ReadJSON(bytes.NewReader(all)); err == nil {
			in.Kind = "ras_json"
			w.out.RAS = append(w.out.RAS, RASReport{at, report})
		} else {
			in.Err = err.Error()
		}
	} else if isPySpy {
		in.Kind = "pyspy"
		for _, s := range readPySpyJSON(all, at) {
			c.addStack(s)
		}
	}
	if err != nil {
		in.Err = err.Error()
	} else if len(all) == maxBlock {
		in.Err = fmt.Sprintf("a document of more than %d MiB: not read", maxBlock>>20)
	}
	c.finish(&in)
	w.out.Inputs = append(w.out.Inputs, in)
	return true
}

// log reads everything that is text.
func (w *worker) log(buf *bufio.Reader, l leaf, count *counted) {
	in := Input{Name: l.name, Kind: "log", Rank: -1}
	if rank, ok := logRank(l.name); ok {
		in.Rank = rank
	}
	before := [3]int{len(w.out.RAS), len(w.out.Stacks), len(w.out.Facts)}
	c := newLogContext(w.out, l.name, in.Rank, w.year)
	if err := c.readLog(buf, &in); err != nil {
		in.Err = err.Error()
	}
	in.Bytes = count.n
	if len(w.out.Facts) == before[2] {
		switch {
		case len(w.out.RAS) > before[0]:
			in.Kind = "ras_text"
			if w.out.RAS[before[0]].Report.FromJSON {
				in.Kind = "ras_json"
			}
		case len(w.out.Stacks) > before[1]:
			in.Kind = map[string]string{"py-spy": "pyspy"}[w.out.Stacks[before[1]].Tool]
			if in.Kind == "" {
				in.Kind = w.out.Stacks[before[1]].Tool
			}
		}
	}
	w.out.Inputs = append(w.out.Inputs, in)
}

// memberBase is the last part of a name, of a member as well.
func memberBase(name string) string {
	if i := strings.LastIndexByte(name, '!'); i >= 0 {
		name = name[i+1:]
	}
	return path.Base(filepath.ToSlash(name))
}

func longLineNote(n int) string {
	return fmt.Sprintf("line %d is longer than %d KiB: the rest of it, and of others like it, was passed over", n, maxLogLine>>10)
}

// finishEvidence joins what only all inputs together say.
func finishEvidence(e *Evidence) {
	dropTwins(e)
	dropSamples(e)
	dropProcessIDs(e)
	attemptRanks(e)
	agentTasks(e)
	joinProcesses(e)
	doubtStacks(e)
	joinNCCL(e)
	orderFiles(e)
	joinGPUs(e)
	placeLocals(e)
	placeStacks(e)
}

// dropTwins leaves one of two dumps of a rank in one folder that say the same: the pickle, which has stacks, beside its JSON form.
func dropTwins(e *Evidence) {
	type key struct {
		folder string
		rank   int
	}
	pickles := map[key]*FlightDump{}
	for _, d := range e.Dumps {
		if d.Data != nil && d.Data.Form == "pickle" && d.Rank >= 0 {
			pickles[key{folderOf(d.Where.File), d.Rank}] = d.Data
		}
	}
	twins := map[string]bool{}
	e.Dumps = slices.DeleteFunc(e.Dumps, func(d Dump) bool {
		if d.Data == nil || d.Data.Form != "json" || d.Rank < 0 {
			return false
		}
		p := pickles[key{folderOf(d.Where.File), d.Rank}]
		if p == nil || p.Cut || !sameDump(p, d.Data) {
			return false
		}
		twins[d.Where.File] = true
		return true
	})
	for i := range e.Inputs {
		if in := &e.Inputs[i]; twins[in.Name] {
			in.Notes = append(in.Notes, "says the same as the pickle of that rank: read once")
		}
	}
}

func folderOf(name string) string { return strings.TrimSuffix(name, memberBase(name)) }

func sameDump(a, b *FlightDump) bool {
	if len(a.Entries) != len(b.Entries) || len(a.Status) != len(b.Status) || len(a.Groups) != len(b.Groups) {
		return false
	}
	for i := range a.Entries {
		x, y := &a.Entries[i], &b.Entries[i]
		if x.RecordID != y.RecordID || x.CollectiveSeqID != y.CollectiveSeqID || x.TimeCreatedNs != y.TimeCreatedNs || x.State != y.State {
			return false
		}
	}
	for _, s := range a.Status { // the forms have them in different orders
		if !slices.Contains(b.Status, s) {
			return false
		}
	}
	return true
}

// dropSamples leaves one of two answers of RAS that are the same one, kept twice: two samples say something only if they are of two moments. The text form
// has no time, so that equal texts may be of a job that stands still.
func dropSamples(e *Evidence) {
	var kept []RASReport
	for _, r := range e.RAS {
		same := r.Report != nil && !r.Report.Time.IsZero() && slices.ContainsFunc(kept, func(k RASReport) bool {
			return k.Report != nil && k.Report.Time.Equal(r.Report.Time) && reflect.DeepEqual(k.Report, r.Report)
		})
		if !same {
			kept = append(kept, r)
			continue
		}
		for i := range e.Inputs {
			if in := &e.Inputs[i]; in.Name == r.Where.File {
				in.Notes = append(in.Notes, "the same answer of RAS as in another file: read once")
			}
		}
	}
	e.RAS = kept
}

// joinProcesses gives facts that name a process but no rank the rank that others name for it: an agent knows pids and local ranks, torchrun's report both.
// Process ids are those of one host: one that another host has as well says nothing where the host is not known.
func joinProcesses(e *Evidence) {
	type process struct {
		host string
		pid  int
	}
	ranks, anywhere := map[process]int{}, map[int]int{}
	hosts := map[string]bool{}
	for i := range e.Facts {
		f := &e.Facts[i]
		if f.PID <= 0 || f.Rank < 0 || f.Kind == Xid || f.Kind == OOMKill || f.Kind == GPUState {
			continue
		}
		host := shortHost(f.Host)
		if host != "" {
			hosts[host] = true
		}
		learnRank(ranks, process{host, f.PID}, f.Rank)
		learnRank(anywhere, f.PID, f.Rank)
	}
	for i := range e.Facts {
		f := &e.Facts[i]
		if f.PID <= 0 || f.Rank >= 0 {
			continue
		}
		host := shortHost(f.Host)
		if rank, ok := ranks[process{host, f.PID}]; ok && host != "" {
			f.Rank = rank
		} else if rank, ok := ranks[process{"", f.PID}]; ok && host != "" { // whose host nobody said
			f.Rank = rank
		} else if rank, ok := anywhere[f.PID]; ok && (host == "" || len(hosts) == 1 && !hosts[host]) { // one host may have two names
			f.Rank = rank
		}
	}
}

// learnRank notes a rank; two make it unknown.
func learnRank[K comparable](ranks map[K]int, key K, rank int) {
	if have, ok := ranks[key]; ok && have != rank {
		rank = -1
	}
	ranks[key] = rank
}

// doubtStacks takes the rank from stacks that have it from their file's name, where several processes are in that file.
func doubtStacks(e *Evidence) {
	pids := map[string]int{}
	for i := range e.Stacks {
		s := &e.Stacks[i]
		if have, ok := pids[s.Where.File]; ok && have != s.PID {
			pids[s.Where.File] = -1
		} else {
			pids[s.Where.File] = s.PID
		}
	}
	for i := range e.Stacks {
		if s := &e.Stacks[i]; s.RankBy == "input" && pids[s.Where.File] == -1 {
			s.Rank, s.RankBy = -1, ""
		}
	}
}
