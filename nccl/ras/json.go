package ras

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxJSON is how large an answer may be: a rank takes about half a kilobyte.
const maxJSON = 256 << 20

// ErrNotRAS is JSON, or text, of something else.
var ErrNotRAS = errors.New("not a RAS report")

// The JSON form as NCCL writes it since 2.28.7.
type jsonReport struct {
	NCCLVersion   *string    `json:"nccl_version"`
	CUDARuntime   int        `json:"cuda_runtime_version"`
	CUDADriver    int        `json:"cuda_driver_version"`
	Timestamp     string     `json:"timestamp"`
	Communicators []jsonComm `json:"communicators"`
	RAS           struct {
		Timeouts int `json:"timeouts_count"`
	} `json:"ras"`
}

type jsonComm struct {
	Hash      string     `json:"hash"`
	Secondary string     `json:"secondary_hash"`
	Size      int        `json:"size"`
	Lost      int        `json:"missing_ranks_count"`
	Ranks     []jsonRank `json:"ranks"`
	Missing   []jsonRank `json:"missing_ranks"`
}

type jsonRank struct {
	Rank   int              `json:"rank"`
	Host   string           `json:"host"`
	PID    int              `json:"pid"`
	GPU    int              `json:"cuda_dev"`
	NVML   int              `json:"nvml_dev"`
	Counts map[string]int64 `json:"collective_counts"`
	Status struct {
		Init         int  `json:"init_state"`
		Async        int  `json:"async_error"`
		Finalize     bool `json:"finalize_called"`
		Destroy      bool `json:"destroy_flag"`
		Abort        bool `json:"abort_flag"`
		Unresponsive bool `json:"unresponsive"`
		Dead         bool `json:"considered_dead"`
	} `json:"status"`
}

// inProgress is ncclInProgress, which is a state and no error.
const inProgress = 7

// resultTexts are NCCL's results in RAS's words.
var resultTexts = map[int]string{1: "Unhandled CUDA error", 2: "System error", 3: "Internal error", 4: "Invalid argument", 5: "Invalid usage",
	6: "Remote process error", 7: "NCCL operation in progress"}

// ReadJSON reads one report in the JSON form. Status and Errors, which that form leaves to its reader, are derived as the text form has them.
func ReadJSON(r io.Reader) (*Report, error) {
	d := json.NewDecoder(io.LimitReader(r, maxJSON))
	var j jsonReport
	if err := d.Decode(&j); err != nil {
		return nil, fmt.Errorf("RAS report: %w", err)
	}
	if j.NCCLVersion == nil || j.Communicators == nil {
		return nil, ErrNotRAS
	}
	rep := &Report{NCCLVersion: *j.NCCLVersion, CUDARuntime: j.CUDARuntime, CUDADriver: j.CUDADriver, FromJSON: true, Verbose: true, Timeouts: j.RAS.Timeouts}
	rep.Time, _ = time.Parse(time.DateTime, j.Timestamp) // unknown where it is something else
	job := jobSize{hosts: map[string]bool{}, procs: map[string]bool{}, gpus: map[string]bool{}}
	for i := range j.Communicators {
		c := &j.Communicators[i]
		job.count(c.Ranks)
		job.count(c.Missing)
		for _, m := range c.Missing {
			rep.lose(m)
		}
	}
	rep.Nodes, rep.Processes, rep.GPUs = len(job.hosts), len(job.procs), len(job.gpus)
	lost := len(rep.Incomplete)+len(rep.Dead) > 0
	for i := range j.Communicators {
		rep.Communicators = append(rep.Communicators, j.Communicators[i].communicator(lost))
	}
	return rep, nil
}

// jobSize counts what communicators have in common.
type jobSize struct{ hosts, procs, gpus map[string]bool }

func (s *jobSize) count(ranks []jsonRank) {
	for _, r := range ranks {
		s.hosts[r.Host] = true
		s.procs[r.Host+" "+strconv.Itoa(r.PID)] = true
		s.gpus[r.Host+" "+strconv.Itoa(r.NVML)] = true
	}
}

// lose adds a process that did not answer to the report, once.
func (rep *Report) lose(r jsonRank) {
	list := &rep.Incomplete
	switch {
	case r.Status.Dead:
		list = &rep.Dead
	case !r.Status.Unresponsive: // it answers, but is no member at the moment
		return
	}
	if !slices.ContainsFunc(*list, func(m Missing) bool { return m.Host == r.Host && m.PID == r.PID }) {
		m := r.missing()
		m.Rank = -1
		*list = append(*list, m)
	}
}

func (r jsonRank) missing() Missing {
	return Missing{Rank: r.Rank, Host: r.Host, PID: r.PID, GPU: r.GPU, Unresponsive: r.Status.Unresponsive, Dead: r.Status.Dead}
}

func (j *jsonComm) communicator(lost bool) Communicator {
	c := Communicator{Group: -1, Hash: j.Hash, Secondary: j.Secondary, Comms: 1, Size: j.Size, Lost: max(j.Lost, len(j.Missing)), Status: "UNKNOWN", Errors: "OK"}
	for _, r := range j.Missing {
		c.Missing = append(c.Missing, r.missing())
	}
	states := make(map[string][]int)
	failed := make(map[result][]int)
	for _, r := range j.Ranks {
		c.RankState = append(c.RankState, r.state())
		c.Places = append(c.Places, Place{Rank: r.Rank, PID: r.PID, GPU: r.GPU, Host: r.Host})
		states[r.word()] = append(states[r.word()], r.Rank)
		for _, e := range []result{{r.Status.Init, true}, {r.Status.Async, false}} {
			if e.code != 0 && e.code != inProgress {
				failed[e] = append(failed[e], r.Rank)
			}
		}
	}
	for _, m := range j.Missing {
		if !m.Status.Unresponsive && !m.Status.Dead {
			states["NOCOMM"] = append(states["NOCOMM"], m.Rank)
		}
	}
	c.counts(j.Ranks)
	c.derive(states, failed, lost)
	return c
}

// result is a code of NCCL, from the initialisation or later.
type result struct {
	code int
	init bool
}

func (r jsonRank) state() RankState {
	return RankState{Rank: r.Rank, PID: r.PID, GPU: r.GPU, Host: r.Host, InitState: r.Status.Init, AsyncError: r.Status.Async,
		Finalize: r.Status.Finalize, Destroy: r.Status.Destroy, Abort: r.Status.Abort}
}

// word is the rank's status as the text form has it.
func (r jsonRank) word() string {
	switch {
	case r.Status.Abort:
		return "ABORT"
	case r.Status.Finalize, r.Status.Destroy:
		return "FINALIZE"
	case r.Status.Init == 0:
		return "RUNNING"
	}
	return "INIT"
}

// maxOps is how many operations are counted; NCCL has five.
const maxOps = 64

// counts groups the ranks by how often they have launched each operation. Operations that nobody called are left out.
func (c *Communicator) counts(ranks []jsonRank) {
	ops := make(map[string]bool)
	for _, r := range ranks {
		for op := range r.Counts {
			if len(ops) < maxOps {
				ops[op] = true
			}
		}
	}
	for op := range ops {
		by, most := make(map[int64][]int), int64(0)
		for _, q := range ranks {
			by[q.Counts[op]] = append(by[q.Counts[op]], q.Rank)
			most = max(most, q.Counts[op])
		}
		if most == 0 {
			continue
		}
		if c.Counts == nil {
			c.Counts = make(map[string][]Level)
		}
		for count, who := range by {
			c.Counts[op] = append(c.Counts[op], Level{Count: count, Ranks: who, N: len(who)})
		}
		slices.SortFunc(c.Counts[op], byNumber)
	}
}

// byNumber puts the largest set first, as the text form does.
func byNumber(a, b Level) int { return cmp.Or(cmp.Compare(b.N, a.N), cmp.Compare(b.Count, a.Count)) }

// derive finds the words that the text form would print.
func (c *Communicator) derive(states map[string][]int, failed map[result][]int, lost bool) {
	for _, word := range []string{"NOCOMM", "INIT", "RUNNING", "FINALIZE", "ABORT"} {
		if ranks := states[word]; len(ranks) > 0 {
			c.Status = word // the last that is there
			c.States = append(c.States, StatusLevel{word, ranks, len(ranks)})
		}
	}
	for _, e := range slices.SortedFunc(maps.Keys(failed), func(a, b result) int { return cmp.Compare(a.code, b.code) }) {
		text := resultTexts[e.code]
		if text == "" {
			text = "Unexpected error"
		}
		c.RankErrors = append(c.RankErrors, RankError{text, e.init, failed[e], len(failed[e])})
	}
	var words []string
	if c.Lost > 0 && lost && slices.ContainsFunc(c.Missing, func(m Missing) bool { return m.Unresponsive || m.Dead }) {
		words = append(words, "INCOMPLETE")
	}
	if len(failed) > 0 {
		words = append(words, "ERROR")
	}
	differ := len(c.States) > 1
	for _, levels := range c.Counts {
		differ = differ || len(levels) > 1
	}
	if differ {
		words = append(words, "MISMATCH")
	}
	if len(words) > 0 {
		c.Errors = strings.Join(words, ",")
	}
}
