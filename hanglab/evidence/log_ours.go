package evidence

import (
	"bytes"
	"math"
	"strconv"
	"strings"
)

// ours takes the lines of the laboratory's own watchdog, which name the rank that speaks: "rank 3: time-out: communicator 0 (default_pg): …".
func (c *logContext) ours(line []byte, at Where) bool {
	text := c.prefix.text
	if bytes.HasPrefix(text, []byte("rank ")) && c.oursOf(text, at, nil) {
		return true
	}
	if i := bytes.Index(text, []byte("call ")); i >= 0 {
		if r := bytes.LastIndex(text[:i], []byte("rank")); r >= 0 { // "rank 3 did not come to call 7"
			i = r
		}
		return c.callCheck(text[i:], at, nil)
	}
	return false
}

// oursOf reads one line of the watchdog. m is the marker that has it in its text, nil for the plain line.
func (c *logContext) oursOf(text []byte, at Where, m *markerEvent) bool {
	n, rest, ok := leadingNumber(bytes.TrimPrefix(text, []byte("rank ")))
	if !ok || n < 0 || !bytes.HasPrefix(rest, []byte(": ")) {
		return false
	}
	rest = rest[2:]
	f := newFact(Timeout, at, text)
	f.Rank, f.Phase = n, phaseIn(rest)
	if m != nil {
		f.MonoNs = m.mono
	}
	switch {
	case bytes.HasPrefix(rest, []byte("time-out: ")):
		return c.ourTimeout(f, rest[len("time-out: "):], m)
	case bytes.HasPrefix(rest, []byte("heard from rank ")):
		return c.ourHeard(f, rest[len("heard from rank "):])
	case bytes.HasPrefix(rest, []byte("asynchronous error: ")):
		f.Kind = NCCLWarn
		f.communicator(rest[len("asynchronous error: "):])
		if bytes.Contains(rest, []byte("ncclRemoteError")) || bytes.Contains(rest, []byte("a peer's process ended or the network failed")) {
			f.Kind, f.Consequence = RemoteError, true
		}
		what := rest[bytes.LastIndex(rest, []byte("asynchronous error: "))+len("asynchronous error: "):]
		what, _, _ = bytes.Cut(what, []byte("; "))
		f.Detail = cutText(what, 200)
	case bytes.Contains(rest, []byte(" could not be created: ")):
		c.ourInitFailed(f, rest)
		return true
	case bytes.Contains(rest, []byte(" after its deadline")):
		f.Kind = Late
		f.communicator(rest)
		f.operation(rest)
		f.Phase = ""
	case bytes.HasPrefix(rest, []byte("the watchdog itself came round after ")):
		f.Kind = Stopped
		f.RanMs = spanMs(rest[len("the watchdog itself came round after "):])
		f.Detail = "the watchdog did not come round"
	case bytes.HasPrefix(rest, []byte("the program has returned with ")):
		if _, op, ok := bytes.Cut(rest, []byte("the oldest: ")); ok {
			f.communicator(op)
			f.operation(op)
		}
		f.Detail = "the program has returned, this is open"
	case bytes.Contains(rest, []byte("no dump from rank")):
		_, list, _ := bytes.Cut(rest, []byte("no dump from rank"))
		list, _, _ = bytes.Cut(bytes.TrimLeft(list, "s "), []byte(" ("))
		f.Kind, f.Ranks, f.Detail = Silent, ranksIn(list), "no dump"
	default:
		return false
	}
	if old := c.sameOurs(&f); old {
		return true
	}
	c.addOther(f)
	return true
}

// sameOurs tells that the marker before this plain line has said it.
func (c *logContext) sameOurs(f *Fact) bool {
	list := c.facts[f.Kind]
	if list == nil || len(list.last) > 0 {
		return false
	}
	for i := len(list.first) - 1; i >= 0 && i >= len(list.first)-4; i-- {
		old := list.first[i]
		if (old.Rank == f.Rank || f.Rank < 0 && f.Kind == Silent) && old.Text == f.Text && old.Where.Line < f.Where.Line {
			old.Where = f.Where // the line that people read
			if old.Time.IsZero() {
				old.Time = c.prefix.Time
			}
			return true
		}
	}
	return false
}

// ourTimeout reads "communicator 0 (default_pg): all_reduce of 394240 float, sequence 7, is not complete 2.006 s after its enqueue (deadline 2 s), …".
func (c *logContext) ourTimeout(f Fact, b []byte, m *markerEvent) bool {
	own := b
	f.communicator(own)
	if m != nil && m.group != "" {
		f.Group = m.group
	}
	if _, rest, ok := bytes.Cut(own, []byte("(deadline ")); ok {
		f.TimeoutMs = spanMs(rest)
	}
	if bytes.Contains(own, []byte(" is not created ")) {
		f.Op, f.Detail = "init", "the communicator is not created"
		if _, rest, ok := bytes.Cut(own, []byte(" is not created ")); ok {
			f.RanMs = spanMs(rest)
		}
	} else {
		f.operation(own)
		f.counters(own)
		if _, rest, ok := bytes.Cut(own, []byte(" is not complete ")); ok {
			f.RanMs = spanMs(rest)
		}
		switch {
		case bytes.Contains(own, []byte(", the device has not begun with it")):
			f.Detail = "the device has not begun with it"
		case bytes.Contains(own, []byte(", the device has begun with it")):
			f.Detail = "the device has begun with it"
		}
	}
	if c.sameOurs(&f) {
		return true
	}
	s := c.addTimeout(f)
	if s.Where.Line < f.Where.Line {
		s.Where = f.Where
	}
	if s.Time.IsZero() {
		s.Time = c.prefix.Time
	}
	return true
}

// ourHeard reads what a rank says when another asks for dumps: one fact for each communicator that it speaks of.
func (c *logContext) ourHeard(f Fact, b []byte) bool {
	f.Kind = DumpSignal
	if n, _, ok := leadingNumber(b); ok {
		f.OtherRank = n
	}
	_, own, ok := bytes.Cut(b, []byte("| this rank: "))
	if !ok {
		return false
	}
	byGroup := map[string]*Fact{}
	var order []string
	var last *Fact
	for part := range strings.SplitSeq(string(own), "; ") {
		p := []byte(part)
		if bytes.HasPrefix(p, []byte("the rank's thread is in host code")) {
			break
		}
		if g := communicatorName(p); g != "" {
			if byGroup[g] == nil {
				x := f
				x.communicator(p)
				byGroup[g] = &x
				order = append(order, g)
			}
			last = byGroup[g]
		}
		if last == nil {
			x := f
			byGroup[""], last = &x, &x
			order = append(order, "")
		}
		last.standing(p)
	}
	for _, g := range order {
		x := *byGroup[g]
		if !c.sameHeard(&x) {
			c.addOther(x)
		}
	}
	return true
}

// sameHeard is sameOurs for the several facts of one line.
func (c *logContext) sameHeard(f *Fact) bool {
	list := c.facts[DumpSignal]
	if list == nil || len(list.last) > 0 {
		return false
	}
	for i := len(list.first) - 1; i >= 0 && i >= len(list.first)-16; i-- {
		old := list.first[i]
		if old.Rank == f.Rank && old.Group == f.Group && old.Text == f.Text && old.Where.Line < f.Where.Line {
			old.Where = f.Where
			if old.Time.IsZero() {
				old.Time = c.prefix.Time
			}
			return true
		}
	}
	return false
}

// standing takes one part of what a rank says about itself.
func (f *Fact) standing(p []byte) {
	f.counters(p)
	switch {
	case bytes.HasPrefix(p, []byte("never joined sequence ")):
		f.seqBehind(p, "never joined sequence ")
		f.Detail = "never joined"
	case bytes.HasPrefix(p, []byte("has completed sequence ")):
		f.seqBehind(p, "has completed sequence ")
		f.Detail = "has completed it"
	case bytes.HasPrefix(p, []byte("waits in sequence ")):
		f.seqBehind(p, "waits in sequence ")
		f.Detail = "waits as well"
	case bytes.HasPrefix(p, []byte("waits in the creation of ")):
		f.Op = "init"
	case bytes.HasPrefix(p, []byte("has no communicator ")):
		f.Op, f.Detail = "init", "never began its creation"
		_, name, _ := bytes.Cut(p, []byte(`"`))
		name, _, _ = bytes.Cut(name, []byte(`"`))
		f.GroupDesc = cutText(name, 100)
	case bytes.HasPrefix(p, []byte("waits for nothing")):
		if f.Detail == "" {
			f.Detail = "waits for nothing"
		}
	}
	if _, op, ok := bytes.Cut(p, []byte(": waits for ")); ok {
		f.operation(op)
	}
}

func (c *logContext) ourInitFailed(f Fact, rest []byte) {
	f.Kind, f.Op = NCCLWarn, "init"
	f.communicator(rest)
	if !f.duplicateGPU(rest) && bytes.Contains(rest, []byte("ncclRemoteError")) {
		f.Kind, f.Consequence, f.Detail = RemoteError, true, "ncclRemoteError"
	}
	if !c.sameOurs(&f) {
		c.addOther(f)
	}
}

// communicatorName reads the "0" of "communicator 0 (default_pg)".
func communicatorName(b []byte) string {
	_, rest, ok := bytes.Cut(b, []byte("communicator "))
	if !ok {
		return ""
	}
	i := 0
	for i < len(rest) && rest[i]-'0' < 10 {
		i++
	}
	return string(rest[:i])
}

func (f *Fact) communicator(b []byte) {
	f.Group = communicatorName(b)
	if f.Group == "" {
		return
	}
	_, rest, _ := bytes.Cut(b, []byte("communicator "+f.Group+" ("))
	if desc, _, ok := bytes.Cut(rest, []byte(")")); ok {
		f.GroupDesc = cutText(desc, 100)
	}
}

// operation reads the first "all_reduce of 394240 float, sequence 7" or "send of 16 float to rank 2, p2p sequence 11".
func (f *Fact) operation(b []byte) {
	i := bytes.Index(b, []byte(" of "))
	if i < 0 {
		return
	}
	j := i
	for j > 0 && (b[j-1] >= 'a' && b[j-1] <= 'z' || b[j-1] == '_') {
		j--
	}
	n, rest, ok := leadingNumber(b[i+len(" of "):])
	if !ok || j == i {
		return
	}
	f.Op, f.NumelIn = string(b[j:i]), int64(n)
	rest = bytes.TrimLeft(rest, " ")
	if end := bytes.IndexAny(rest, ", "); end > 0 {
		f.DType = cutText(rest[:end], 20)
		rest = rest[end:]
	}
	if end := bytes.Index(rest, []byte("sequence ")); end >= 0 {
		f.P2P = bytes.HasSuffix(rest[:end], []byte("p2p "))
		if f.Seq < 0 {
			f.seqBehind(rest, "sequence ")
		}
		rest = rest[:end]
	}
	for _, word := range []string{" to rank ", " from rank ", ", root "} {
		if n, ok := numberBehind(rest, word); ok {
			f.Peer = n
		}
	}
}

// counters reads "last enqueued 7, started 7, completed 6" and "last enqueued == last completed == 6".
func (f *Fact) counters(b []byte) {
	i := bytes.Index(b, []byte("last enqueued "))
	if i < 0 {
		return
	}
	rest := b[i+len("last enqueued "):]
	if n, ok := numberBehind(rest, "== last completed == "); ok && bytes.HasPrefix(rest, []byte("==")) {
		f.LastEnqueued, f.LastCompleted = int64(n), int64(n)
		return
	}
	rest, _, _ = bytes.Cut(rest, []byte(";"))
	if n, _, ok := leadingNumber(rest); ok {
		f.LastEnqueued = int64(n)
	}
	if n, ok := numberBehind(rest, "started "); ok {
		f.LastStarted = int64(n)
	}
	if n, ok := numberBehind(rest, "completed "); ok {
		f.LastCompleted = int64(n)
	}
}

// phaseIn reads "…; the rank's thread is in host code: step 5: saving a checkpoint, for 998 ms", of this rank and not of the one it heard from.
func phaseIn(b []byte) string {
	if _, own, ok := bytes.Cut(b, []byte("| this rank: ")); ok {
		b = own
	}
	_, phase, ok := bytes.Cut(b, []byte("the rank's thread is in host code: "))
	if !ok {
		return ""
	}
	if i := bytes.LastIndex(phase, []byte(", for ")); i > 0 {
		phase = phase[:i]
	}
	return cutText(phase, 200)
}

// spanMs reads "2.006 s", "999 ms", "120 µs", "1m0s"; -1: something else.
func spanMs(b []byte) int64 {
	i := 0
	for i < len(b) && (b[i]-'0' < 10 || b[i] == '.') {
		i++
	}
	x, err := strconv.ParseFloat(string(b[:i]), 64)
	if err != nil {
		return -1
	}
	unit := strings.TrimLeft(string(b[i:min(len(b), i+6)]), " ")
	switch {
	case strings.HasPrefix(unit, "ms"):
		return int64(x)
	case strings.HasPrefix(unit, "µs"), strings.HasPrefix(unit, "us"), strings.HasPrefix(unit, "ns"):
		return 0
	case strings.HasPrefix(unit, "s"):
		return int64(math.Round(x * 1000))
	case strings.HasPrefix(unit, "m"):
		return int64(math.Round(x * 60000))
	}
	return -1
}

// duplicateGPU reads "duplicate device: ranks 2 and 3 both use …" of the host engine, and NCCL's sentence where its last error is told in another line.
func (f *Fact) duplicateGPU(b []byte) bool {
	if _, rest, ok := bytes.Cut(b, []byte("Duplicate GPU detected")); ok {
		return warnDuplicate(f, rest)
	}
	_, rest, ok := bytes.Cut(b, []byte("duplicate device: ranks "))
	if !ok {
		return false
	}
	first, rest, ok := leadingNumber(rest)
	rest, and := bytes.CutPrefix(rest, []byte(" and "))
	second, _, ok2 := leadingNumber(rest)
	if !ok || !and || !ok2 {
		return false
	}
	f.Ranks, f.Detail = []int{first, second}, "duplicate GPU"
	return true
}
