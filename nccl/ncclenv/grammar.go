package ncclenv

import (
	"slices"
	"strings"
)

// functions that NCCL_ALGO and NCCL_PROTO may name; send and receive are not chosen by them.
var functions = []string{"broadcast", "reduce", "allgather", "reducescatter", "allreduce"}

// algoFunctions is which functions an algorithm exists for.
var algoFunctions = map[string][]string{
	"tree": {"allreduce"}, "ring": functions, "collnetdirect": {"allreduce", "allgather", "reducescatter"}, "collnetchain": {"allreduce"},
	"nvls": {"allreduce", "allgather", "reducescatter"}, "nvlstree": {"allreduce"}, "pat": {"allgather", "reducescatter"},
}

// algoSince is the first version that knows an algorithm.
var algoSince = map[string]Version{"collnetdirect": {2, 14, 3}, "collnetchain": {2, 14, 3}, "nvls": {2, 17, 1}, "nvlstree": {2, 18, 1}, "pat": {2, 23, 4}}

// choice is one part of a value of NCCL_ALGO or NCCL_PROTO, between semicolons.
type choice struct {
	function string // empty: all
	not      bool
	words    []string // lower case
}

func parseChoices(text string) []choice {
	var out []choice
	for _, part := range strings.Split(strings.ToLower(text), ";") {
		if part == "" {
			continue
		}
		var c choice
		list := part
		if f, rest, ok := strings.Cut(part, ":"); ok {
			c.function, list = f, rest
		}
		list, c.not = strings.CutPrefix(list, "^")
		c.words = slices.DeleteFunc(strings.Split(list, ","), func(w string) bool { return w == "" })
		out = append(out, c)
	}
	return out
}

// grammar judges NCCL_ALGO and NCCL_PROTO. Since 2.24 NCCL fails on anything that it does not know; before, it left that out.
func (c *checker) grammar(text string) {
	choices := parseChoices(text)
	for i, ch := range choices {
		if problem, advice := c.part(i, ch); problem != "" {
			c.add(c.s.about(Fault, "grammar", "%s", problem).do("%s", advice))
			return
		}
	}
	perFunction := slices.ContainsFunc(choices, func(ch choice) bool { return ch.function != "" })
	if perFunction && c.before(2, 24, 3) {
		c.add(c.s.about(Fault, "too-new", "choices for one function are understood from 2.24.3 on, this is %s", c.version).do("give one list for all functions"))
	}
	if c.v.Type == typeProto {
		c.forcedLL128(choices)
		return
	}
	for _, ch := range choices {
		for _, w := range ch.words {
			if since := algoSince[w]; !c.version.IsZero() && c.version.Before(since) {
				c.add(c.s.about(Fault, "too-new", "%s exists from %s on, this is %s", show(w), since, c.version).do("leave it out"))
			}
		}
	}
	c.leftWithout(choices)
}

func (c *checker) part(i int, ch choice) (problem, advice string) {
	words := c.v.words()
	lower := make([]string, len(words))
	for j, w := range words {
		lower[j] = strings.ToLower(w)
	}
	switch {
	case ch.function == "" && i > 0:
		return "only the first part may stand without a function", "write function:list after each semicolon, functions " + strings.Join(functions, ", ")
	case strings.ContainsAny(ch.function+strings.Join(ch.words, ""), " \t"):
		return "blanks are taken for letters of a name", "write it without blanks"
	case ch.function != "" && !slices.Contains(functions, ch.function):
		advice = "functions are " + strings.Join(functions, ", ")
		if near := nearestWord(strings.ReplaceAll(ch.function, "_", ""), functions); near != "" {
			advice = "was " + near + " meant?"
		}
		return show(ch.function) + " is no function here", advice
	case len(ch.words) == 0:
		return "a list is empty", "name at least one of " + strings.Join(words, ", ")
	}
	for _, w := range ch.words {
		if slices.Contains(lower, w) {
			continue
		}
		switch near := nearestWord(w, words); {
		case w[0] == '^':
			return "^ counts only in front of a whole list", "write ^" + strings.TrimPrefix(strings.Join(ch.words, ","), "^")
		case strings.Contains(w, ":"):
			return "two colons in one part", "put semicolons between the functions"
		case w == "collnet":
			return "collnet is the name of 2.5 to 2.13", "write collnetdirect or collnetchain"
		case slices.Contains(functions, w):
			return show(w) + " is a function, not a choice", "write function:list"
		case near != "":
			return show(w) + " is not known; since 2.24 creation of a communicator fails", "was " + near + " meant?"
		}
		return show(w) + " is not known; since 2.24 creation of a communicator fails", "use " + strings.Join(words, ", ")
	}
	return "", ""
}

// leftWithout finds functions for which no algorithm is left: since 2.24 their first call fails, before ring was taken.
func (c *checker) leftWithout(choices []choice) {
	allowed := map[string][]string{}
	for _, f := range functions {
		allowed[f] = c.v.words()
		for _, ch := range choices {
			if ch.function != "" && ch.function != f {
				continue
			}
			allowed[f] = slices.DeleteFunc(slices.Clone(c.v.words()), func(w string) bool { return slices.Contains(ch.words, w) == ch.not })
		}
	}
	var left []string
	for _, f := range functions {
		if !slices.ContainsFunc(allowed[f], func(w string) bool { return slices.Contains(algoFunctions[w], f) }) {
			left = append(left, f)
		}
	}
	if len(left) > 0 && !c.before(2, 24, 3) {
		c.add(c.s.about(Odd, "no-algorithm", "nothing of this list exists for %s: since 2.24 such a call fails instead of taking ring", strings.Join(left, ", ")).
			do("name the function, for example %s=allreduce:%s", c.s.Name, strings.Join(choices[0].words, ",")))
	}
}

// forcedLL128 finds LL128 asked for, which also turns it on where the hardware cannot do it.
func (c *checker) forcedLL128(choices []choice) {
	for _, ch := range choices {
		if !ch.not && slices.Contains(ch.words, "ll128") {
			c.add(c.s.about(Odd, "forced-ll128", "naming LL128 turns it on even where the hardware tears its 128-byte writes: data may then be wrong").
				do("leave the choice to NCCL, or exclude others: %s=^LL", c.s.Name))
			return
		}
	}
}
