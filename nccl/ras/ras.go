// Package ras asks a running job's NCCL for its own view of itself (RAS, since NCCL 2.24) and reads its answers, text of every version and JSON.
package ras

import "time"

// Report is one answer: the communicators of a job and how far their ranks are. Counts are calls made by hosts, not calls that are complete.
type Report struct {
	NCCLVersion   string         `json:"nccl_version,omitempty"`
	CUDARuntime   int            `json:"cuda_runtime"`
	CUDADriver    int            `json:"cuda_driver"`
	Time          time.Time      `json:"time,omitzero"`     // zero: not said (text); the job's local time, whose zone it does not say, as UTC
	Verbose       bool           `json:"verbose,omitempty"` // text of VERBOSE STATUS
	FromJSON      bool           `json:"from_json,omitempty"`
	Nodes         int            `json:"nodes"` // -1: not said
	Processes     int            `json:"processes"`
	GPUs          int            `json:"gpus"`
	Communicators []Communicator `json:"communicators,omitempty"`
	Incomplete    []Missing      `json:"incomplete,omitempty"` // processes that did not answer
	Dead          []Missing      `json:"dead,omitempty"`       // processes considered dead
	Timeouts      int            `json:"timeouts"`             // while RAS gathered its data
	Notes         []string       `json:"notes,omitempty"`      // lines of its Errors and Warnings that are not in the above, as written
	Cut           bool           `json:"cut,omitempty"`        // the answer ends in the middle
	Raw           []byte         `json:"-"`                    // the answer as it came; Query only
}

// Communicator is one of the job's. The text form puts communicators that are alike into one group.
type Communicator struct {
	Group     int                `json:"group"`            // number in the text form, -1
	Hash      string             `json:"hash,omitempty"`   // "0x…" or 16 hex digits; "" if the group has several
	Comms     int                `json:"comms"`            // how many the group has
	Size      int                `json:"size"`             // ranks
	Status    string             `json:"status,omitempty"` // "RUNNING", "INIT", "NOCOMM", "FINALIZE", "ABORT", "UNKNOWN"; derived for JSON
	Errors    string             `json:"errors,omitempty"` // "OK", "MISMATCH", "INCOMPLETE", "ERROR" or several with commas; derived for JSON
	Counts    map[string][]Level `json:"counts,omitempty"` // by operation ("AllReduce"): who has called how often; the JSON form has all ranks, the text only outliers
	Missing   []Missing          `json:"missing,omitempty"`
	RankState []RankState        `json:"rank_state,omitempty"` // JSON only

	Secondary  string        `json:"secondary,omitempty"`   // second hash, JSON only: with the first it makes the communicator unique
	Lost       int           `json:"lost"`                  // ranks that RAS has no data of, named in Missing or not
	States     []StatusLevel `json:"states,omitempty"`      // where ranks' states differ (text: the outliers; JSON: all)
	RankErrors []RankError   `json:"rank_errors,omitempty"` // initialisation and asynchronous errors of ranks
	Places     []Place       `json:"places,omitempty"`      // where the ranks are that the report names
}

// StatusLevel is ranks with the same state.
type StatusLevel struct {
	Status string `json:"status,omitempty"`
	Ranks  []int  `json:"ranks,omitempty"` // those that are named
	N      int    `json:"n"`
}

// RankError is ranks that reported the same error.
type RankError struct {
	Text  string `json:"text,omitempty"` // NCCL's words: "Remote process error"
	Init  bool   `json:"init,omitempty"` // of the initialisation; if not, an asynchronous one
	Ranks []int  `json:"ranks,omitempty"`
	N     int    `json:"n"`
}

// Place is the process of a rank.
type Place struct {
	Rank int    `json:"rank"`
	PID  int    `json:"pid"`
	GPU  int    `json:"gpu"`
	Host string `json:"host,omitempty"`
}

// Level is ranks that have launched an operation equally often.
type Level struct {
	Count int64 `json:"count"`
	Ranks []int `json:"ranks,omitempty"` // those that are named
	N     int   `json:"n"`               // how many they are, named or not
}

// Missing is a rank or process that RAS has no data of.
type Missing struct {
	Rank         int    `json:"rank"` // -1
	Host         string `json:"host,omitempty"`
	PID          int    `json:"pid"`
	GPU          int    `json:"gpu"` // CUDA device, -1
	Unresponsive bool   `json:"unresponsive,omitempty"`
	Dead         bool   `json:"dead,omitempty"`
}

// RankState is one rank in the JSON form.
type RankState struct {
	Rank       int    `json:"rank"`
	PID        int    `json:"pid"`
	GPU        int    `json:"gpu"`
	Host       string `json:"host,omitempty"`
	InitState  int    `json:"init_state"` // 0 good, 7 in progress
	AsyncError int    `json:"async_error"`
	Finalize   bool   `json:"finalize,omitempty"`
	Destroy    bool   `json:"destroy,omitempty"`
	Abort      bool   `json:"abort,omitempty"`
}
