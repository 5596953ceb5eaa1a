package bench

import (
	"fmt"
	"slices"
	"strings"

	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/internal/bootstrap"
	"github.com/commprobe/commprobe/nccl"
)

// The check on exact data proves that a result is right whatever the order of summation. Consistency asks another question: is the result of
// data whose sum does depend on the order the same bits on all ranks, each time, in each fresh run, with each algorithm and protocol?

// uniform stands for input that shows the order of a floating-point sum.
const uniform = nccl.RedOp(csrc.OpUniform)

// consistencyRepeats is how often an operation is repeated on the same data within one process.
const consistencyRepeats = 3

// Variant is the NCCL_ALGO and NCCL_PROTO that a set of processes runs with; "" leaves the variable alone.
type Variant struct{ Algo, Proto string }

// Env is what the variant's processes have in their environment.
func (v Variant) Env() []string {
	var out []string
	if v.Algo != "" {
		out = append(out, "NCCL_ALGO="+v.Algo)
	}
	if v.Proto != "" {
		out = append(out, "NCCL_PROTO="+v.Proto)
	}
	return out
}

func (v Variant) String() string {
	if env := v.Env(); len(env) > 0 {
		return strings.Join(env, " ")
	}
	return "NCCL's own choice"
}

// Variants are all combinations of algorithms and protocols.
func Variants(algos, protos []string) []Variant {
	if len(algos) == 0 {
		algos = []string{""}
	}
	if len(protos) == 0 {
		protos = []string{""}
	}
	var out []Variant
	for _, a := range algos {
		for _, p := range protos {
			out = append(out, Variant{a, p})
		}
	}
	return out
}

// hashes repeats the operation on the same data and takes a fingerprint of each result.
func (h *half) hashes() error {
	if !h.t.plan.Consistency || h.inPlace {
		return nil
	}
	for range consistencyRepeats {
		for i := range h.ms {
			m := &h.ms[i]
			err := m.on(func(l *lane) error {
				d := m.data(h.t, uint64(h.t.number)+5)
				if h.t.coll.reduces {
					d.op = uniform
				}
				send, recv := m.buffers(h.inPlace)
				if err := l.check.poison(recv, int64(m.ly.recv)*int64(h.t.dtype.Size()), 0, l.stream); err != nil {
					return err
				}
				return l.check.fill(send, m.ly.send, d, l.at, l.stream)
			})
			if err != nil {
				return fmt.Errorf("%s: %w", h.doing, err)
			}
		}
		if _, err := h.run(h.series(h.steps, 1), h.doing+", consistency"); err != nil {
			return err
		}
		if err := h.plantResult(0); err != nil {
			return err
		}
		for i := range h.ms {
			m := &h.ms[i]
			err := m.on(func(l *lane) error {
				_, recv := m.buffers(h.inPlace)
				sum, err := l.check.hash(recv, m.ly.recv, h.t.dtype, l.stream)
				h.out[i].Hashes = append(h.out[i].Hashes, sum)
				return err
			})
			if err != nil {
				return fmt.Errorf("%s: fingerprint: %w", h.doing, err)
			}
		}
	}
	return nil
}

// consistency compares the fingerprints of all rows.
func consistency(rows []result.Row) []result.Consistency {
	same := make(map[halfKey][]result.Row)
	var order []halfKey
	for _, r := range rows {
		if r.OutOfPlace == nil || len(r.OutOfPlace.Ranks) == 0 || len(r.OutOfPlace.Ranks[0].Hashes) == 0 {
			continue
		}
		k := keyOf(&r, false)
		k.algo, k.proto = "", "" // they are what is compared
		if _, ok := same[k]; !ok {
			order = append(order, k)
		}
		same[k] = append(same[k], r)
	}
	var out []result.Consistency
	for _, k := range order {
		c := result.Consistency{Collective: k.coll, Type: k.dtype, Op: k.op, Root: k.root, Group: k.group, Bytes: k.bytes}
		compareRuns(&c, same[k])
		out = append(out, c)
	}
	return out
}

// compareRuns judges the rows of one operation at one size, from several runs and variants.
func compareRuns(c *result.Consistency, rows []result.Row) {
	byVariant := make(map[Variant][]string)
	var variants []Variant
	for _, r := range rows {
		v := Variant{r.Algo, r.Proto}
		if odd := oddRanks(r); odd != nil {
			c.Ranks = union(c.Ranks, odd)
		}
		if unsteady := unsteadyRanks(r); unsteady != nil {
			c.Unsteady = union(c.Unsteady, unsteady)
		}
		if _, ok := byVariant[v]; !ok {
			variants = append(variants, v)
		}
		byVariant[v] = append(byVariant[v], fingerprint(r))
	}
	c.Runs = len(rows)
	for _, v := range variants {
		prints := slices.Clone(byVariant[v])
		slices.Sort(prints)
		prints = slices.Compact(prints)
		c.RunsDiffer = c.RunsDiffer || len(prints) > 1
		c.Variants = append(c.Variants, result.Fingerprint{Algo: v.Algo, Proto: v.Proto, Hashes: prints})
		c.VariantsDiffer = c.VariantsDiffer || !slices.Equal(prints, c.Variants[0].Hashes)
	}
	wrong := slices.ContainsFunc(rows, func(r result.Row) bool { return r.OutOfPlace.Wrong != nil && *r.OutOfPlace.Wrong > 0 })
	checked := !slices.ContainsFunc(rows, func(r result.Row) bool { return r.OutOfPlace.Wrong == nil })
	c.Fault, c.Verdict = judgeConsistency(c, orderMatters(c), wrong, checked)
}

// orderMatters tells whether the operation's result may depend on the order of summation.
func orderMatters(c *result.Consistency) bool {
	t, err := nccl.ParseDataType(c.Type)
	if err != nil {
		return false
	}
	_, float := floatBits[t]
	return float && (c.Op == "sum" || c.Op == "prod" || c.Op == "avg" || c.Op == "mulsum")
}

func judgeConsistency(c *result.Consistency, ordered, wrong, checked bool) (fault bool, text string) {
	exact := "; the check on exact data found nothing wrong"
	if !checked {
		exact = "; whether the data is right was not checked (-c 0)"
	}
	switch {
	case wrong:
		return true, "wrong data: the check on exact data failed, so differences say nothing about the order of summation"
	case len(c.Ranks) > 0:
		return true, fmt.Sprintf("%s differ from the other ranks, although all must have the same result", bootstrap.NameRanks(c.Ranks))
	case !ordered && (len(c.Unsteady) > 0 || c.RunsDiffer || c.VariantsDiffer):
		return true, "results differ although no order of summation is involved: data is lost or mixed up at times (a race)"
	case len(c.Unsteady) > 0:
		return false, "the same process gets different bits from the same data: the order of summation changes from call to call" + exact
	case c.RunsDiffer:
		return false, "fresh runs get different bits: the order of summation changes from run to run" + exact
	case c.VariantsDiffer:
		return false, "differs by summation order: each algorithm and protocol repeats its own bits" + exact
	}
	return false, "same bits everywhere"
}

// oddRanks are the ranks whose result differs from that of the most, where all must have the same; nil when all agree.
func oddRanks(r result.Row) []int {
	c, err := findCollective(r.Collective)
	if err != nil || !c.agree {
		return nil
	}
	count := make(map[string]int)
	for _, rank := range r.OutOfPlace.Ranks {
		count[strings.Join(rank.Hashes, " ")]++
	}
	if len(count) == 1 {
		return nil
	}
	most := ""
	for h, n := range count {
		if n > count[most] || n == count[most] && h < most {
			most = h
		}
	}
	var out []int
	for _, rank := range r.OutOfPlace.Ranks {
		// Without a majority nobody can be named: all are.
		if strings.Join(rank.Hashes, " ") != most || count[most]*2 <= len(r.OutOfPlace.Ranks) {
			out = append(out, rank.Rank)
		}
	}
	return out
}

// unsteadyRanks are those whose repeats differ.
func unsteadyRanks(r result.Row) []int {
	var out []int
	for _, rank := range r.OutOfPlace.Ranks {
		// Each communicator over the same GPU has its own repeats.
		for i := 0; i+consistencyRepeats <= len(rank.Hashes); i += consistencyRepeats {
			if h := slices.Compact(slices.Clone(rank.Hashes[i : i+consistencyRepeats])); len(h) > 1 {
				out = append(out, rank.Rank)
				break
			}
		}
	}
	return out
}

// fingerprint is that of all ranks' results.
func fingerprint(r result.Row) string {
	var all []string
	for _, rank := range r.OutOfPlace.Ranks {
		all = append(all, rank.Hashes...)
	}
	return strings.Join(slices.Compact(all), ",")
}

func union(a, b []int) []int {
	out := append(slices.Clone(a), b...)
	slices.Sort(out)
	return slices.Compact(out)
}
