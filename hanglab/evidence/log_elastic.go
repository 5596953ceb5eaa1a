package evidence

import (
	"bytes"
)

// elasticReader reads the report that torchrun ends with: one block a process, of which the last heading says that it is the root cause. It is
// the first that the agent noticed, in whole seconds, so it need not be the cause.
type elasticReader struct {
	open  bool
	root  bool
	left  int // lines that are not its own which it still bears
	rank  int // of the present block, -1
	fact  Fact
	begun bool
}

const elasticPatience = 200 // a block may hold a traceback

// take takes a line of the report.
func (e *elasticReader) take(c *logContext, found uint32, at Where) bool {
	text := bytes.TrimSpace(c.prefix.text)
	if found&(1<<topicElastic) != 0 {
		switch {
		case bytes.HasPrefix(text, []byte("Failures:")), bytes.HasPrefix(text, []byte("Other Failures:")):
			e.flush(c)
			*e = elasticReader{open: true, left: elasticPatience, rank: -1}
			return true
		case bytes.HasPrefix(text, []byte("Root Cause (first observed")):
			e.flush(c)
			*e = elasticReader{open: true, root: true, left: elasticPatience, rank: -1}
			return true
		}
		return false
	}
	if !e.open {
		return false
	}
	if e.left--; e.left < 0 || len(text) > 20 && text[0] == '=' && e.begun {
		e.end(c)
		return false
	}
	if n := len(text); n > 2 && text[0] == '[' && bytes.HasSuffix(text, []byte("]:")) && isNumber(text[1:n-2]) {
		e.flush(c)
		e.begun, e.rank = true, -1
		e.fact = newFact(Ended, at, c.prefix.text)
		e.fact.Detail, e.fact.Host, e.fact.Time = "torchrun", c.prefix.Host, c.prefix.Time
		return true
	}
	if !e.begun {
		return false
	}
	return e.field(text, c.prefix.text, at)
}

// field takes "rank      : 7 (local_rank: 7)".
func (e *elasticReader) field(text, line []byte, at Where) bool {
	name, value, ok := bytes.Cut(text, []byte(":"))
	value = bytes.TrimSpace(value)
	f := &e.fact
	switch string(bytes.TrimSpace(name)) {
	case "time":
		if t, ok := stampTime(value, 0); ok {
			f.Time = t
		}
	case "host":
		f.Host = cutText(value, 100)
	case "rank":
		n, _, ok := leadingNumber(value)
		if !ok || n < 0 {
			return false
		}
		f.Rank, e.rank = n, n
		if local, ok := numberBehind(value, "(local_rank: "); ok {
			f.LocalRank = local
		}
	case "exitcode":
		if n, _, ok := leadingNumber(value); ok {
			f.setExit(n)
		}
		if n, ok := numberBehind(value, "(pid: "); ok {
			f.PID = n
		}
		f.Where, f.Text = at, factText(line)
	case "error_file":
	case "traceback":
		return !bytes.HasPrefix(value, []byte("Traceback (most recent"))
	default:
		return false
	}
	return ok
}

// flush keeps the block that ends.
func (e *elasticReader) flush(c *logContext) {
	if !e.begun {
		return
	}
	e.begun = false
	f := e.fact
	f.Consequence = f.Signal == 15
	c.pair(f.Rank, f.LocalRank)
	c.addOther(f)
	if e.root {
		f.Kind = Launcher
		c.addOther(f)
	}
}

func (e *elasticReader) end(c *logContext) {
	e.flush(c)
	e.open = false
}
