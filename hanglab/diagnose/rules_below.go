package diagnose

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/commprobe/commprobe/hanglab/evidence"
)

// alarmAt is when the first watchdog fired and how long before that the cause may lie: a deadline passes before anybody complains.
func (j *job) alarmAt() (at time.Time, back time.Duration) {
	for _, k := range []evidence.FactKind{evidence.Timeout, evidence.DumpSignal, evidence.HostStuck} {
		for _, f := range j.logs.by[k] {
			if !f.Time.IsZero() && (at.IsZero() || f.Time.Before(at)) {
				at = f.Time
			}
			back = max(back, time.Duration(max(f.TimeoutMs, f.RanMs))*time.Millisecond)
		}
	}
	return at, back + time.Minute
}

// inWindow tells whether a line of a kernel's log can belong to the hang: in the deadline's time before the alarm, and a minute. Logs of other clocks or without
// times are let pass.
func (j *job) inWindow(t time.Time) bool {
	at, back := j.alarmAt()
	if at.IsZero() || t.IsZero() {
		return true
	}
	d := since(t, at)
	return d <= back+14*time.Hour && d >= -14*time.Hour && within(d, back)
}

// since is the time from a to b. Some logs write no year: then neither counts.
func since(a, b time.Time) time.Duration {
	if a.Year() < 1970 || b.Year() < 1970 {
		a, b = sameYear(a), sameYear(b)
	}
	return b.Sub(a)
}

func sameYear(t time.Time) time.Time {
	return time.Date(2000, t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), time.UTC)
}

// within allows for a log in another time zone: whole hours, or half hours, do not count.
func within(d, back time.Duration) bool {
	for shift := -14 * time.Hour; shift <= 14*time.Hour; shift += 30 * time.Minute {
		if x := d + shift; x >= -10*time.Second && x <= back {
			return true
		}
	}
	return false
}

// xidMeaning is what NVIDIA's numbers mean, of those that stop a job.
func xidMeaning(code int) string {
	switch code {
	case 13, 31, 43:
		return "a fault of the program's own kernel"
	case 45:
		return "work removed because something else had failed"
	case 48, 63, 64, 92, 94, 95:
		return "GPU memory errors (ECC)"
	case 74, 144, 145, 146, 147, 148, 149, 150:
		return "NVLink"
	case 79:
		return "the GPU has fallen off the bus"
	case 119, 120:
		return "the GPU's system processor does not answer"
	}
	return "a GPU error"
}

// gpuFaults: the kernel's log names a GPU. Xid 45 is always a consequence, and "caused by previous Xid" says so itself.
func (j *job) gpuFaults() []*finding {
	var cause, follow []*evidence.Fact
	for _, x := range j.logs.by[evidence.Xid] {
		if !j.inWindow(x.Time) {
			continue
		}
		if x.Consequence || x.Code == 45 {
			follow = append(follow, x)
		} else {
			cause = append(cause, x)
		}
	}
	if len(cause)+len(follow) == 0 {
		return nil
	}
	main := append(slices.Clone(cause), follow...)
	slices.SortStableFunc(cause, func(a, b *evidence.Fact) int { return xidRank(a.Code) - xidRank(b.Code) })
	f := newFinding(GPUFault, explicit, stated)
	if len(cause) == 0 {
		f.Confidence = inferred
		cause = follow[:1]
		for _, x := range follow { // what it follows from is named
			if strings.Contains(x.Text, "caused by previous Xid") {
				cause = []*evidence.Fact{x}
				break
			}
		}
	} else {
		main = append(slices.Clone(cause), follow...)
	}
	f.Ranks = ranksOf(cause[:1])
	f.when = cause[0].Time
	f.Location = "GPU " + busOf(cause[0])
	for _, x := range main[:min(5, len(main))] {
		says := fmt.Sprintf("GPU %s: Xid %d, %s", busOf(x), x.Code, xidMeaning(x.Code))
		if slices.Contains(follow, x) {
			says += "; a consequence"
		}
		f.fact(x, says)
	}
	switch cause[0].Code {
	case 13, 31, 43:
		f.Confidence = inferred
		f.alternative(RankCrash, byAbsence, f.Ranks...)
	}
	return []*finding{f.say("GPU %s failed: Xid %d, %s", busOf(cause[0]), cause[0].Code, xidMeaning(cause[0].Code))}
}

// xidRank orders causes: hardware before links before programs.
func xidRank(code int) int {
	switch code {
	case 79:
		return 0
	case 48, 63, 64, 94, 95:
		return 1
	case 149, 144, 74:
		return 2
	case 119, 120:
		return 3
	case 145, 146, 147, 148, 150:
		return 4
	}
	return 5
}

func busOf(f *evidence.Fact) string {
	bus, _, _ := strings.Cut(strings.TrimPrefix(f.Detail, "SXid "), " ")
	return bus
}

// cudaErrors: a rank's own device reported an error.
func (j *job) cudaErrors() (out []*finding) {
	list := slices.DeleteFunc(slices.Clone(j.logs.by[evidence.CUDAError]), func(x *evidence.Fact) bool { return x.Consequence || j.troubled(x) })
	list, doubt := j.caught(list)
	if len(list) == 0 {
		return nil
	}
	hard := func(x *evidence.Fact) bool { return slices.Contains([]int{214, 220, 46, 802, 714, 719, 721}, x.Code) }
	slices.SortStableFunc(list, func(a, b *evidence.Fact) int { return boolInt(hard(b)) - boolInt(hard(a)) })
	x := list[0]
	class, says := RankCrash, "an error of the program's own kernel"
	if hard(x) {
		class, says = GPUFault, "an error of the device"
	}
	if x.Code == 101 || x.Code == 100 {
		class, says = EnvMismatch, "a device that is not there"
	}
	f := newFinding(class, explicit, inferred, ranksOf(list)...)
	for _, x := range list[:min(4, len(list))] {
		f.fact(x, fmt.Sprintf("%s: %s", whose(x), says))
	}
	f.when = x.Time
	f.doubted(doubt)
	if class == RankCrash {
		f.alternative(GPUFault, byAbsence, f.Ranks...)
	} else {
		f.alternative(RankCrash, oneView, f.Ranks...)
	}
	return []*finding{f.say("%s reported a CUDA error (%s): %s", orText(rankText(f.Ranks), whose(x)), orText(x.Detail, fmt.Sprint(x.Code)), says)}
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// network: a link or a NIC is named by who must know. That a peer is gone is not among it.
func (j *job) network() (out []*finding) {
	var list []*evidence.Fact
	for _, x := range slices.Concat(j.logs.by[evidence.LinkDown], j.logs.by[evidence.IBError]) {
		if !x.Consequence && j.inWindow(x.Time) {
			list = append(list, x)
		}
	}
	if len(list) == 0 {
		return nil
	}
	f := newFinding(Network, transport, inferred)
	for _, x := range list[:min(5, len(list))] {
		says := "a link went down"
		if x.Kind == evidence.IBError {
			says = fmt.Sprintf("a transfer failed on the wire (status %d: %s)", x.Code, x.Detail)
		}
		f.fact(x, says)
	}
	f.when = list[0].Time
	f.Location = orText(peerIn(list[0].Detail), list[0].Host)
	f.alternative(RankCrash, oneView)
	f.Next = append(f.Next, "ibstat, port error counters and the switch's log for the link that is named; whether the peer's process was alive then")
	return []*finding{f.say("a link failed (%s); whether its peer's process was alive at that time is still to be checked", orText(list[0].Detail, list[0].Text))}
}

func peerIn(detail string) string {
	if _, rest, ok := strings.Cut(detail, "peer "); ok {
		peer, _, _ := strings.Cut(rest, ",")
		return "peer " + peer
	}
	return ""
}

// peers: connections that were closed by somebody who is named. Who names is alive, who is named is gone.
func (j *job) peers() (out []*finding) {
	var named []int
	var list []*evidence.Fact
	for _, x := range j.logs.by[evidence.PeerClosed] {
		for _, r := range x.Ranks {
			if p := j.logs.progs[r]; p == nil || p.finished == nil {
				named = append(named, r)
			}
		}
		list = append(list, x)
	}
	named = slices.Compact(slices.Sorted(slices.Values(named)))
	if len(named) > 0 && len(named) <= max(1, len(list)/2) {
		f := newFinding(RankCrash, transport, probable, named...)
		for _, x := range list[:min(4, len(list))] {
			f.fact(x, fmt.Sprintf("%s saw %s close its connection", whose(x), showRanks(x.Ranks)))
		}
		f.alternative(Network, direction)
		f.Next = append(f.Next, "the last lines, exit status and kernel log of "+showRanks(named))
		out = append(out, f.say("peers lost their connection to %s: its process ended", showRanks(named)))
	}
	remote := j.logs.by[evidence.RemoteError]
	if len(out) == 0 && len(remote)+len(list) > 0 {
		f := newFinding(Undecided, transport, direction)
		for _, x := range slices.Concat(remote, list)[:min(4, len(remote)+len(list))] {
			f.fact(x, fmt.Sprintf("%s lost a peer", whose(x)))
		}
		f.Next = append(f.Next, "the logs and exit statuses of all ranks: the one that ended first is the cause; kernel and NIC logs if none ended")
		out = append(out, f.say("%s lost a peer: a process ended or the network failed, and this error does not tell which", orText(rankText(ranksOf(remote)), "a rank")))
	}
	return out
}

// environment: versions, settings, or devices that differ or collide.
func (j *job) environment() (out []*finding) {
	for _, k := range []evidence.FactKind{evidence.Version, evidence.EnvDiffers} {
		for _, x := range j.logs.by[k] {
			f := newFinding(EnvMismatch, explicit, stated, x.Ranks...)
			if k == evidence.EnvDiffers {
				f.Confidence, f.layer = probable, transport
				if !j.hangs() {
					f.layer = observation
				}
			}
			f.when = x.Time
			f.fact(x, "these must be the same on all ranks: "+x.Detail)
			out = append(out, f.say("ranks are set up differently: %s", orText(x.Detail, x.Text)))
			break
		}
	}
	var twice []*evidence.Fact
	for _, x := range j.logs.by[evidence.NCCLWarn] {
		if strings.HasPrefix(x.Detail, "duplicate GPU") {
			twice = append(twice, x)
		}
	}
	if len(twice) > 0 {
		f := newFinding(EnvMismatch, explicit, stated, twice[0].Ranks...)
		for _, x := range twice[:min(3, len(twice))] {
			f.fact(x, fmt.Sprintf("%s use one GPU", showRanks(x.Ranks)))
		}
		out = append(out, f.say("%s use the same GPU, which NCCL refuses", showRanks(f.Ranks)))
	}
	out = append(out, j.setups()...)
	return append(out, j.guessedDevice()...)
}

// setups: a process lacks something on its host, and failed by it.
func (j *job) setups() []*finding {
	list, doubt := j.caught(j.logs.by[evidence.Setup])
	if len(list) == 0 || !j.failed() {
		return nil
	}
	f := newFinding(EnvMismatch, explicit, inferred, ranksOf(list)...)
	if len(f.Ranks) == 0 { // who failed inside of its library, and not by a peer
		var ranks []int
		for _, x := range j.logs.by[evidence.NCCLWarn] {
			if x.Rank >= 0 && x.Where.File == list[0].Where.File {
				ranks = union(ranks, []int{x.Rank})
			}
		}
		if len(ranks) == 1 {
			f.Ranks, f.Confidence = ranks, probable
		}
	}
	for _, x := range list[:min(3, len(list))] {
		f.fact(x, fmt.Sprintf("%s lacks what it needs on its host: %s", whose(x), x.Detail))
	}
	f.when = list[0].Time
	f.Location = list[0].Host
	f.doubted(doubt)
	return []*finding{f.say("%s lacks what it needs on its host: %s", orText(rankText(f.Ranks), whose(list[0])), list[0].Detail)}
}

// libraryWord: NCCL itself has met with different calls, or with a message of another size than it expected. It names the place, not who is wrong.
func (j *job) libraryWord() []*finding {
	list := j.logs.by[evidence.Mismatch]
	if len(list) == 0 {
		return nil
	}
	f := newFinding(OpMismatch, transport, probable)
	if strings.Contains(list[0].Detail, "size") || strings.Contains(list[0].Detail, "truncated") {
		f.Class = SizeMismatch
	}
	for _, x := range list[:min(4, len(list))] {
		f.fact(x, fmt.Sprintf("%s met with another call than its own", whose(x)))
		for _, r := range x.Ranks {
			f.alternative(f.Class, oneView, r)
		}
	}
	f.when = list[0].Time
	f.Location = orText(peerIn(list[0].Detail), list[0].Host)
	f.alternative(EnvMismatch, direction)
	f.Next = append(f.Next, "a run with TORCH_DISTRIBUTED_DEBUG=DETAIL, or NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=COLL of all ranks")
	around := ""
	if len(list[0].Ranks) > 0 {
		around = ", at or around " + showRanks(list[0].Ranks)
	}
	return []*finding{f.say("NCCL itself says that ranks have made different calls%s (%s)", around, orText(list[0].Detail, list[0].Text))}
}

// cancelled: somebody, or a limit, has ended the job. Whether it hung before is for others to say.
func (j *job) cancelled() []*finding {
	list := j.logs.by[evidence.Cancelled]
	if len(list) == 0 || list[0].Detail == "node failure" {
		return nil
	}
	f := newFinding(Undecided, observation, direction)
	for _, x := range list[:min(3, len(list))] {
		f.fact(x, "the job was ended from outside: "+x.Detail)
	}
	f.when = list[0].Time
	return []*finding{f.say("the job was ended from outside (%s); nothing that is here shows that it hung before", list[0].Detail)}
}

// cancelledBefore tells that a process was ended when the whole job was.
func (j *job) cancelledBefore(e *evidence.Fact) bool {
	return slices.ContainsFunc(j.logs.by[evidence.Cancelled], func(c *evidence.Fact) bool { return c.Detail != "node failure" && !after(c, e) })
}

// guessedDevice: barriers before a rank has a device put several ranks on one GPU, and the first collective never comes about.
func (j *job) guessedDevice() []*finding {
	list := j.logs.by[evidence.BarrierDevice]
	byDevice := map[int][]int{}
	for _, x := range list {
		if r := rankOf(x); r >= 0 {
			byDevice[x.Code] = union(byDevice[x.Code], []int{r})
		}
	}
	var ranks []int
	for _, r := range byDevice {
		if len(r) > 1 {
			ranks = union(ranks, r)
		}
	}
	early := j.earlyTimeouts()
	switch {
	case len(ranks) == 0 && (len(list) == 0 || len(early) == 0):
		return nil
	case len(ranks) == 0:
		ranks = ranksOf(list)
	}
	f := newFinding(LazyInit, unfinished, inferred, ranks...)
	if len(early) == 0 {
		f.Confidence, f.layer = oneView, observation
	}
	for _, x := range list[:min(4, len(list))] {
		f.fact(x, fmt.Sprintf("%s had no device of its own and took GPU %d", whose(x), x.Code))
	}
	for _, x := range early[:min(3, len(early))] {
		f.fact(x, "the very first call does not finish")
		f.Sequence, f.Op, f.Group = x.Seq, x.Op, x.Group
	}
	return []*finding{f.say("%s made a communicator by a barrier before they had a device of their own: several of one host took the same GPU", showRanks(ranks))}
}

// earlyTimeouts are of a group's first calls.
func (j *job) earlyTimeouts() (out []*evidence.Fact) {
	for _, x := range j.logs.by[evidence.Timeout] {
		if x.Seq >= 0 && x.Seq <= 2 && x.Op != "init" {
			out = append(out, x)
		}
	}
	return out
}

// lazyPairs: un-batched sends and receives make a communicator of two ranks at their first use; made in different orders they wait for each other.
func (j *job) lazyPairs() []*finding {
	pairs := map[string]*evidence.Fact{}
	for _, x := range j.logs.by[evidence.Timeout] {
		a, b, ok := strings.Cut(x.Group, ":")
		if ok && number(a) && number(b) && (x.Op == "recv" || x.Op == "send") {
			pairs[x.Group] = x
		}
	}
	if len(pairs) == 1 {
		return j.onePair(pairs)
	}
	if len(pairs) == 0 {
		return nil
	}
	f := newFinding(LazyInit, unfinished, byAbsence)
	for _, key := range slices.Sorted(mapsKeys(pairs)) {
		f.fact(pairs[key], "a communicator of two ranks, "+key+", waits for its other end")
		f.Op, f.Group, f.Sequence = pairs[key].Op, key, pairs[key].Seq
	}
	f.alternative(UnpairedP2P, oneView)
	return []*finding{f.say("sends and receives wait in %d communicators of two ranks that are made at their first use: made in different orders they wait for each other, and no single rank is to blame",
		len(pairs))}
}

// onePair: one communicator of two ranks waits. Which of the two has not come is not to be seen from one side.
func (j *job) onePair(pairs map[string]*evidence.Fact) []*finding {
	for key, x := range pairs {
		a, b, _ := strings.Cut(key, ":")
		one, err1 := strconv.Atoi(a)
		two, err2 := strconv.Atoi(b)
		if err1 != nil || err2 != nil {
			return nil
		}
		f := newFinding(UnpairedP2P, unfinished, oneView, one, two)
		f.fact(x, fmt.Sprintf("%s waits for its partner", whose(x)))
		f.Op, f.Group, f.Sequence, f.P2P = x.Op, key, x.Seq, true
		f.alternative(LazyInit, oneView)
		f.Next = append(f.Next, "the log and the dump of the other rank of the pair")
		return []*finding{f.say("a %s between ranks %d and %d does not finish: its partner has not made the other half", x.Op, one, two)}
	}
	return nil
}

func number(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// ownCheck tells that a rank's program ended by finding a value that is not a number.
func (j *job) ownCheck(x *evidence.Fact) bool {
	return x.Rank >= 0 && x.Detail != "value" && slices.ContainsFunc(j.logs.by[evidence.Traceback], func(t *evidence.Fact) bool { return t.Where == x.Where })
}

// aboutNaN tells that an exception is about a value that is not a number.
func (j *job) aboutNaN(t *evidence.Fact) bool {
	return t.Rank >= 0 && slices.ContainsFunc(j.logs.by[evidence.NaN], func(x *evidence.Fact) bool { return t.Where == x.Where && x.Detail != "value" })
}

// notANumber: a rank whose own input or loss was not a number before the reduction gave it to all.
func (j *job) notANumber() []*finding {
	var source, any []*evidence.Fact
	for _, x := range j.logs.by[evidence.NaN] {
		any = append(any, x)
		if x.Detail == "input" || strings.Contains(x.Text, "nan_input") {
			source = append(source, x)
		}
	}
	if len(any) == 0 {
		return nil
	}
	if len(source) == 0 {
		source = any
		if all := ranksOf(any); len(all) > 1 { // who had it first
			slices.SortStableFunc(any, func(a, b *evidence.Fact) int { return int(a.Seq - b.Seq) })
			source = slices.DeleteFunc(slices.Clone(any), func(x *evidence.Fact) bool { return x.Seq != any[0].Seq })
		}
	}
	failed := slices.DeleteFunc(slices.Clone(any), func(x *evidence.Fact) bool { return !j.ownCheck(x) })
	if len(failed) > 0 { // a rank that looked at its own values before they were reduced
		source = failed
	}
	ranks := ranksOf(source)
	f := newFinding(NaNSource, unfinished, inferred, ranks...)
	if len(failed) > 0 {
		f.layer = explicit
	}
	for _, x := range source[:min(4, len(source))] {
		f.fact(x, fmt.Sprintf("%s had a value that is not a number", whose(x)))
	}
	if len(ranks) == 0 || len(ranks) > 1 && len(ranks) >= len(j.logs.ranks) {
		f.Ranks, f.Confidence, f.layer = nil, oneView, observation
		return []*finding{f.say("values are not numbers on all ranks alike: which rank had them first is not said")}
	}
	if len(j.logs.by[evidence.Timeout]) > 0 && len(failed) == 0 {
		f.layer = observation
	}
	for _, x := range j.logs.by[evidence.WrongData] {
		f.fact(x, fmt.Sprintf("%s has it in its result", whose(x)))
	}
	return []*finding{f.say("%s puts a value that is not a number into a reduction, which gives it to all ranks", showRanks(ranks))}
}
