package evidence

import (
	"bytes"
)

// nanWords stand before a value that is not a number, as training programs print it.
var nanWords = []string{"loss", "grad", "norm", "found", "detected", "tensor", "scale", "element", "value", "output", "input", "activation", "weight", "param"}

// nan takes "loss=nan", "grad norm: NaN", "found NaN in …". A word that only has the letters in it is none.
func (c *logContext) nan(line []byte, at Where) bool {
	c.low = appendLower(c.low[:0], line[:min(len(line), 2048)])
	low := c.low
	if !wordNaN(low) || !containsAny(low, nanWords...) || containsAny(low, "nan_to_num", "check_nan", "nan check", "nccl_", "no nan", "detect_nan", "nan=false", "nan=true", "skip_nan", "allow_nan", "nan_policy") {
		return false
	}
	f := newFact(NaN, at, line)
	f.Seq = stepIn(low)
	f.speakingRank(c.prefix.text)
	f.Detail = "value"
	if containsAny(low, "grad") {
		f.Detail = "gradient"
	} else if containsAny(low, "loss") {
		f.Detail = "loss"
	} else if containsAny(low, "input") {
		f.Detail = "input"
	}
	c.add(f)
	return true
}

// wordNaN tells that "nan" or "inf" stands there as a word.
func wordNaN(low []byte) bool {
	for _, w := range []string{"nan", "inf"} {
		for from := 0; ; {
			i := bytes.Index(low[from:], []byte(w))
			if i < 0 {
				break
			}
			i += from
			end := i + len(w)
			if end < len(low) && low[end] == 's' {
				end++
			}
			if (i == 0 || !wordByte(low[i-1])) && (end >= len(low) || !wordByte(low[end])) {
				return true
			}
			from = i + 1
		}
	}
	return bytes.Contains(low, []byte("isnan")) && bytes.Contains(low, []byte("true"))
}

func wordByte(c byte) bool { return c-'0' < 10 || c-'a' < 26 || c-'A' < 26 || c == '_' || c == '/' }

// stepWords stand before the number of a step, the surest first.
var stepWords = []string{"global_step", "iteration", "iter", "step"}

// stepIn finds how far the program is; -1 if the line does not say.
func stepIn(low []byte) int64 {
	for _, w := range stepWords {
		for from := 0; ; {
			i := bytes.Index(low[from:], []byte(w))
			if i < 0 {
				break
			}
			i += from
			rest := low[i+len(w):]
			from = i + len(w)
			if i > 0 && wordByte(low[i-1]) && low[i-1] != '/' {
				continue
			}
			rest = bytes.TrimPrefix(rest, []byte("s"))
			j := 0
			for j < len(rest) && j < 4 && (rest[j] == ' ' || rest[j] == ':' || rest[j] == '=' || rest[j] == '[' || rest[j] == '#' || rest[j] == '"' || rest[j] == '\'') {
				j++
			}
			if n, tail, ok := leadingNumber(rest[j:]); ok && j > 0 && n >= 0 && n < 1<<40 && (len(tail) == 0 || tail[0] != '.' || len(tail) == 1 || tail[1]-'0' > 9) {
				return int64(n)
			}
		}
	}
	return -1
}

// progress keeps the first and the last step that each writer speaks of.
func (c *logContext) progress(line []byte, at Where) bool {
	if len(line) > 2048 {
		return false
	}
	c.low = appendLower(c.low[:0], line)
	step := stepIn(c.low)
	if step < 0 {
		step = barStep(line)
	}
	if step < 0 {
		return false
	}
	var who Fact
	who.Rank = -1
	who.speakingRank(c.prefix.text)
	key := who.Rank
	if key < 0 {
		key = max(c.prefix.Rank, c.rank)
	}
	if key < 0 && c.prefix.Label != "" {
		return false // many writers, none of them known
	}
	if s := c.steps[key]; s != nil && s.done {
		s.Where, s.Seq, s.Time, s.order = at, step, c.prefix.Time, c.added
		s.raw = append(s.raw[:0], line...)
		c.added++
		return true
	}
	first := c.steps[key]
	if first == nil && len(c.steps) >= maxTimeouts {
		return false
	}
	f := newFact(Progress, at, line)
	f.Rank, f.Seq = who.Rank, step
	s := c.add(f)
	s.done = first != nil // the second one is moved along
	c.steps[key] = s
	return true
}

func appendLower(to, b []byte) []byte {
	for _, c := range b {
		if c-'A' < 26 {
			c += 'a' - 'A'
		}
		to = append(to, c)
	}
	return to
}

// barStep reads the "1234" of a progress bar: " 12%|███   | 1234/10000 [12:34<…, 1.6it/s]".
func barStep(line []byte) int64 {
	i := bytes.LastIndex(line, []byte("| "))
	if i < 0 || !bytes.Contains(line[i:], []byte("it")) {
		return -1
	}
	n, rest, ok := leadingNumber(line[i+2:])
	if !ok || n < 0 || len(rest) == 0 || rest[0] != '/' {
		return -1
	}
	return int64(n)
}
