package evidence

import (
	"bytes"
	"strconv"
	"strings"
)

// endWords are what schedulers, launchers and people leave in a log when they end a job, in lower case; all words of a line must be there.
var endWords = []struct {
	words [2]string
	why   string
}{
	{[2]string{"due to time limit", ""}, "time limit"}, {[2]string{"walltime", "exceeded"}, "time limit"}, {[2]string{"term_runlimit", ""}, "time limit"},
	{[2]string{"time limit", "job killed"}, "time limit"}, {[2]string{"deadlineexceeded", "job"}, "time limit"},
	{[2]string{"due to preemption", ""}, "preempted"}, {[2]string{"preempted", "job"}, "preempted"}, {[2]string{"preempted", "instance"}, "preempted"},
	{[2]string{"due to node failure", ""}, "node failure"}, {[2]string{"node_fail", ""}, "node failure"}, {[2]string{"node failure", "aborting"}, "node failure"},
	{[2]string{"reason:", "evicted"}, "evicted"}, {[2]string{"the node was low on resource", ""}, "evicted"},
	{[2]string{"cancelled at", ""}, "cancelled"}, {[2]string{"signals.sigint", "death signal"}, "interrupt"}, {[2]string{"received 2 death signal", ""}, "interrupt"},
	{[2]string{"signals.sigterm", "death signal"}, "told to end"}, {[2]string{"received 15 death signal", ""}, "told to end"}, {[2]string{"term_owner", "killed by owner"}, "cancelled"},
	{[2]string{"got signal: 15", ""}, "told to end"}, {[2]string{"got signal: 2", ""}, "interrupt"},
}

// lifeCycle takes what is said of the job as a whole: somebody ended it, a launcher starts it again, or it has come to its end as it should.
func (c *logContext) lifeCycle(line []byte, at Where) bool {
	c.low = appendLower(c.low[:0], line[:min(len(line), 2048)])
	low := c.low
	for _, w := range endWords {
		if !bytes.Contains(low, []byte(w.words[0])) || !bytes.Contains(low, []byte(w.words[1])) {
			continue
		}
		f := newFact(Cancelled, at, line)
		f.Detail = w.why
		if _, rest, ok := bytes.Cut(line, []byte(" AT ")); ok { // slurmstepd writes no other time
			if t, ok := stampTime(rest[:min(len(rest), stampLen(rest))], 0); ok {
				f.Time = t
			}
		}
		c.addOther(f)
		return true
	}
	if containsAny(low, "will restart worker group", "restarting worker group") {
		f := newFact(Restarted, at, line)
		f.Detail = "torchrun"
		if n, ok := numberBehind(low, "failed. "); ok {
			f.Detail += ", attempts left: " + strconv.Itoa(n)
		}
		c.addOther(f)
		return true
	}
	if bytes.Contains(low, []byte("^c")) && bytes.Equal(bytes.TrimSpace(low), []byte("^c")) {
		f := newFact(Cancelled, at, line)
		f.Detail = "interrupt"
		c.addOther(f)
		return true
	}
	if bytes.Contains(low, []byte("destroy_process_group() was not called")) { // PyTorch's word in its destructors, so at the end of a program
		f := newFact(Ending, at, line)
		f.speakingRank(c.prefix.text)
		c.add(f)
		return true
	}
	return c.ends(low, line, at)
}

// goodEnds are sentences with which training programs and launchers end, in lower case.
var goodEnds = []string{
	"training complete", "training finished", "finished training", "training done", "done training", "training is complete", "training has finished", "training has completed",
	"training successful", "successfully finished", "finished successfully", "completed successfully", "worker group successfully", "workerstate.succeeded", "training ended successfully",
}

// ends takes the words of a good end. A wish or a failure that has them in it is none.
func (c *logContext) ends(low, line []byte, at Where) bool {
	if !containsAny(low, goodEnds...) || containsAny(low, "not ", "fail", "error", " until ", " when ", " before ", " if ", "n't ", "checkpoint", "download", "epoch") {
		return false
	}
	f := newFact(Finished, at, line)
	f.speakingRank(c.prefix.text)
	if c.prefix.Rank < 0 && c.rank < 0 && f.Rank < 0 && c.prefix.Label == "" {
		f.Detail = "the job"
		c.addOther(f)
		return true
	}
	c.add(f)
	return true
}

// meeting takes the lines about processes that did not come: monitored barriers name them, the store's barriers only count them.
func (c *logContext) meeting(line []byte, at Where) bool {
	if i := bytes.Index(line, []byte(" failed to pass monitoredBarrier")); i >= 0 {
		f := newFact(Silent, at, line)
		f.Op, f.Detail = "barrier", "monitoredBarrier"
		if j := bytes.LastIndex(line[:i], []byte("Rank")); j >= 0 { // "[rank0]:" stands before it
			f.Ranks = ranksIn(bytes.TrimLeft(line[j+len("Rank"):i], "s "))
		}
		if n, ok := numberBehind(line[i:], "monitoredBarrier in "); ok {
			f.TimeoutMs = int64(n)
		}
		if len(f.Ranks) > 0 {
			c.add(f)
		}
		return len(f.Ranks) > 0
	}
	if bytes.Contains(line, []byte("eached monitoredBarrier, but")) { // the others of it: rank 0 knows who
		f := newFact(Gloo, at, line)
		f.Op, f.Detail, f.Consequence = "barrier", "peer failed", true
		f.speakingRank(c.prefix.text)
		if n, ok := numberBehind(line, "RuntimeError: Rank ", "[Rank ", "Rank "); ok && f.Rank < 0 && c.prefix.Rank < 0 {
			f.Rank = n
		}
		c.add(f)
		return true
	}
	return c.storeBarrier(line, at)
}

// storeBarrier takes "… store based barrier to initialize process group for rank: 3, key: store_based_barrier_key:1 (world_size=8, worker_count=7, timeout=0:30:00)" and
// "Timed out after 1801 seconds waiting for clients. 7/8 clients joined."
func (c *logContext) storeBarrier(line []byte, at Where) bool {
	f := newFact(Silent, at, line)
	f.Op = "init"
	world, come := -1, -1
	if before, _, ok := bytes.Cut(line, []byte(" clients joined")); ok {
		word := before[bytes.LastIndexByte(before, ' ')+1:]
		a, b, ok := strings.Cut(string(word), "/")
		if !ok {
			return false
		}
		come, world = shortNumber([]byte(a)), shortNumber([]byte(b))
	} else if bytes.Contains(line, []byte("store based barrier")) {
		world, _ = numberBehind(line, "world_size=")
		come, _ = numberBehind(line, "num_workers_joined=", "worker_count=")
		if n, ok := numberBehind(line, "for rank: ", "on rank: "); ok && c.prefix.Rank < 0 {
			f.Rank = n
		}
	}
	if world <= 0 || come < 0 || come >= world {
		return false
	}
	f.GroupSize = world
	f.Detail = strconv.Itoa(come) + " of " + strconv.Itoa(world) + " came"
	c.add(f)
	return true
}
