package timeline

import (
	"slices"
	"strconv"
)

type builder struct {
	*Line
	about  map[int][]int // entries by the rank that they tell of, in order
	losses []int         // entries that may have closed a connection, in order
}

func newBuilder(l *Line) *builder {
	b := &builder{Line: l, about: map[int][]int{}}
	for i := range l.Entries {
		e := &l.Entries[i]
		b.about[e.About] = append(b.about[e.About], i)
		if isEnd(e) && !endedWell(e) || slices.Contains([]string{Exit, Panic, Abort, Killed}, e.Name) {
			b.losses = append(b.losses, i)
		}
	}
	return b
}

// certainlyBefore: a happened before b, whatever the clocks' uncertainty. The end of a process may have happened before it was noticed.
func (b *builder) certainlyBefore(i, j int) bool {
	x, y := &b.Entries[i], &b.Entries[j]
	latest, earliest := x.TNs, y.TNs-slack(y)
	sameClock := x.Rank == y.Rank || x.UncertaintyNs < 0 && y.UncertaintyNs < 0 && x.Host != "" && x.Host == y.Host
	if !sameClock {
		if x.UncertaintyNs < 0 || y.UncertaintyNs < 0 {
			return false
		}
		latest += x.UncertaintyNs
		earliest -= y.UncertaintyNs
	}
	if latest == earliest && slack(y) == 0 && x.Rank == y.Rank {
		return i < j // one clock, one reading: the order in which they were told
	}
	return latest < earliest
}

func slack(e *Entry) int64 {
	if e.Name != ProcessEnd && e.Name != Signal {
		return 0
	}
	if n, err := strconv.ParseInt(e.Fields["slack_ns"], 10, 64); err == nil && n >= 0 {
		return n
	}
	return reapSlackNs
}

// earlier is the last entry of one of the names about the same rank that is before entry i; -1: none. What a rank has written down it wrote
// while it lived, so the end of its process comes after it, whatever the clocks say.
func (b *builder) earlier(i int, names ...string) int {
	best := -1
	for _, j := range b.about[b.Entries[i].About] {
		x := &b.Entries[j]
		if j < i || j > i && isEnd(&b.Entries[i]) && !isEnd(x) && x.Rank != Supervisor {
			if slices.Contains(names, x.Name) {
				best = j
			}
		}
	}
	return best
}

func isEnd(e *Entry) bool { return e.Name == ProcessEnd || e.Name == Signal }

// whyEnded lists what explains the end of the rank's process, so that the end itself is no news.
var whyEnded = []string{Inject, Skip, Panic, Exit, Watchdog, Heard, Abort, AsyncError, Mismatch, WrongData, Killed, Fuse}

// layer is how much an entry says as a cause; -1: it is none, whatever else is known.
func (b *builder) layer(i int) int {
	e := &b.Entries[i]
	switch e.Name {
	case Inject:
		if e.Fields["case"] != "control" {
			return 0
		}
	case Skip, Panic:
		if b.earlier(i, Inject) < 0 {
			return 0
		}
	case Exit:
		if e.Fields["code"] != "0" && b.earlier(i, whyEnded...) < 0 {
			return 0
		}
	case Signal, ProcessEnd:
		if !endedWell(e) && b.earlier(i, append([]string{Signal, ProcessEnd}, whyEnded...)...) < 0 && !b.echo(i) {
			return 0
		}
	case Mismatch, WrongData:
		return 1
	case Watchdog:
		return 2
	case AsyncError:
		return 3
	case Summary:
		return 4
	}
	return -1
}

func endedWell(e *Entry) bool {
	return e.Name == ProcessEnd && e.Fields["signal"] == "" && (e.Fields["code"] == "0" || e.Fields["code"] == "")
}

// echo: SIGABRT is how libraries end a process over what they have noticed, so anything that went wrong before it, anywhere, comes first.
func (b *builder) echo(i int) bool {
	if e := &b.Entries[i]; e.Fields["by"] == "supervisor" {
		return true
	} else if e.Fields["signal"] != "SIGABRT" {
		return false
	}
	return slices.ContainsFunc(b.Entries[:i], func(e Entry) bool {
		return slices.Contains(whyEnded, e.Name) || isEnd(&e) && !endedWell(&e)
	})
}

// assignCauses picks the first entry of the highest layer, or of a lower one that is certainly earlier than all above it.
func (b *builder) assignCauses() {
	var layers [len(evidence)][]int
	for i := range b.Entries {
		if n := b.layer(i); n >= 0 {
			layers[n] = append(layers[n], i)
		}
	}
	best := -1
	var above []int
	for n, list := range layers {
		if len(list) == 0 {
			continue
		}
		if !slices.ContainsFunc(above, func(j int) bool { return !b.certainlyBefore(list[0], j) }) {
			best, b.Layer = list[0], n
		}
		above = append(above, list...)
	}
	if best < 0 {
		return
	}
	b.Causes, b.Evidence = []int{best}, evidence[b.Layer]
	for _, i := range layers[b.Layer] {
		x, y := &b.Entries[best], &b.Entries[i]
		if i != best && x.About != y.About && !b.certainlyBefore(best, i) && !sameFinding(x, y) {
			b.Causes = append(b.Causes, i)
		}
	}
	role := Cause
	if len(b.Causes) > 1 {
		role = Simultaneous
	}
	for _, i := range b.Causes {
		b.Entries[i].Role = role
	}
}

// sameFinding: several ranks say the same of one operation.
func sameFinding(x, y *Entry) bool {
	if x.Name != y.Name || !slices.Contains([]string{Watchdog, Mismatch, WrongData}, x.Name) {
		return false
	}
	for _, f := range []string{"comm", "seq", "step"} {
		if x.Fields[f] != y.Fields[f] {
			return false
		}
	}
	return true
}

// assignRole tells for one entry what it follows from, as directly as the events show.
func (b *builder) assignRole(i int) {
	e := &b.Entries[i]
	if e.Role != Normal || isNormal(e) {
		return
	}
	e.Role = Observation
	if len(b.Causes) == 0 {
		return
	}
	cause := b.Causes[0]
	if sameFinding(&b.Entries[cause], e) {
		e.Of = cause
		return
	}
	parent := b.parent(i)
	if parent < 0 && b.layer(i) < 0 && !knownKind(e.Name) {
		return
	}
	if parent < 0 || b.follows(parent, i) { // clocks that contradict each other could make a circle
		parent = cause
	}
	if b.certainlyBefore(i, parent) { // odd, but no consequence
		return
	}
	e.Role, e.Of = Consequence, parent
}

// follows: entry i is known to follow from entry j, over any number of steps.
func (b *builder) follows(i, j int) bool {
	for ; i >= 0; i = b.Entries[i].Of {
		if i == j {
			return true
		}
	}
	return false
}

func isNormal(e *Entry) bool {
	switch e.Name {
	case Healthy, Enter, Done, InitBegin, InitDone, Enqueue:
		return true
	case Inject:
		return e.Fields["case"] == "control"
	case Exit:
		return e.Fields["code"] == "0"
	case ProcessEnd:
		return endedWell(e)
	}
	return false
}

func knownKind(name string) bool {
	return slices.Contains(whyEnded, name) || slices.Contains([]string{Signal, ProcessEnd, Dump, Summary}, name)
}

// parent is what an entry follows from most directly; -1: nothing nearer than the cause.
func (b *builder) parent(i int) int {
	e := &b.Entries[i]
	switch e.Name {
	case Heard:
		return b.alarmOf(i, e.Fields["from"])
	case Dump:
		return b.earlier(i, Heard, Watchdog, AsyncError, Mismatch, Panic)
	case Abort:
		return b.earlier(i, Dump, Heard, Watchdog, AsyncError)
	case Skip, Panic, Fuse:
		return b.earlier(i, Inject)
	case Exit:
		return b.earlier(i, whyEnded...)
	case Signal, ProcessEnd:
		return b.earlier(i, append([]string{Signal, ProcessEnd}, whyEnded...)...)
	case AsyncError:
		if e.Fields["remote"] == "true" {
			return b.lostPeer(i)
		}
	}
	return -1
}

// alarmOf is the alarm that a rank has heard of.
func (b *builder) alarmOf(i int, from string) int {
	r, err := strconv.Atoi(from)
	if err != nil {
		return -1
	}
	for _, j := range b.about[r] {
		x := &b.Entries[j]
		if x.Rank == r && (x.Name == Watchdog || x.Name == AsyncError) && !b.certainlyBefore(i, j) {
			return j
		}
	}
	return -1
}

// lostPeer is the first rank whose end can have closed the connection.
func (b *builder) lostPeer(i int) int {
	for _, j := range b.losses {
		if b.Entries[j].About != b.Entries[i].About && !b.certainlyBefore(i, j) {
			return j
		}
	}
	return -1
}

// markUnfinished points out, in a run that went wrong, the steps and creations that ranks entered and never left.
func (b *builder) markUnfinished() {
	ends := map[string]string{Enter: Done, InitBegin: InitDone}
	type key struct {
		rank       int
		name, what string
	}
	ended := map[key]bool{}
	for _, e := range b.Entries {
		ended[key{e.Rank, e.Name, e.Fields["step"] + "/" + e.Fields["comm"]}] = true
	}
	for i := range b.Entries {
		e := &b.Entries[i]
		end, ok := ends[e.Name]
		if ok && !ended[key{e.Rank, end, e.Fields["step"] + "/" + e.Fields["comm"]}] {
			e.Role = Observation
			e.Text += ", never done"
		}
	}
}
