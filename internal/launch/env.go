package launch

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/commprobe/commprobe/internal/bootstrap"
)

// EnvToken names the environment variable that holds the job's token as hex.
const EnvToken = "COMMPROBE_TOKEN"

// Placement is what a foreign launcher tells one rank.
type Placement struct {
	Engine     string // "torchrun"
	Rank       int
	World      int
	LocalRank  int // rank on this host; -1 if the engine does not say
	LocalWorld int // ranks on this host; -1 if the engine does not say

	// Rendezvous is host:port where rank 0 is to host the store.
	Rendezvous string
	JobID      string // "" if the engine does not say

	From map[string]string // variables used, and their values
}

// EnvError means that the variables of an engine are incomplete or contradict
// each other.
type EnvError struct {
	Engine   string
	Variable string
	Value    string
	Set      bool // false if the variable is missing
	Problem  string
}

// Error names the engine, the variable and its value.
func (e *EnvError) Error() string {
	if !e.Set {
		return fmt.Sprintf("%s environment: %s is not set: %s", e.Engine, e.Variable, e.Problem)
	}
	return fmt.Sprintf("%s environment: %s=%q: %s", e.Engine, e.Variable, e.Value, e.Problem)
}

// UnsupportedEngineError means that this process is one rank of several, but
// of an engine whose placement cannot be read. Running alone would measure the
// wrong thing in silence.
type UnsupportedEngineError struct {
	Engine   string
	Variable string // what gave it away
	World    int
}

// Error names the engine and the way out.
func (e *UnsupportedEngineError) Error() string {
	return fmt.Sprintf("started by %s as one of %d ranks (%s=%d), which is not supported: "+
		"start commprobe once, without %s, or under torchrun", e.Engine, e.World, e.Variable, e.World, e.Engine)
}

// engine reads the environment of one launcher.
type engine struct {
	name string
	// seen tells whether the environment is that of this engine, even if it is
	// incomplete.
	seen func(*reader) bool
	// place reads the placement; errors gather in the reader.
	place func(*reader) Placement
}

// engines, innermost first: torchrun is often started by srun or mpirun, and
// then it is torchrun that says who this process is.
var engines = []engine{
	{name: "torchrun", seen: seenTorchrun, place: placeTorchrun},
}

// foreign lists engines that are recognised but not supported. Each gives the
// variable with the world size, or "" when this process is not one of its
// ranks.
var foreign = []struct {
	name string
	size func(*reader) string
}{
	{"Open MPI", func(r *reader) string { return r.firstSet("OMPI_COMM_WORLD_SIZE") }},
	{"PMI (MPICH, Intel MPI)", func(r *reader) string { return r.firstSet("PMI_SIZE") }},
	{"Slurm", slurmSize},
}

// FromEnv recognises the launcher that started this process. lookup is
// [os.LookupEnv] but for tests. Without a launcher it returns nil, nil. Errors
// are *[EnvError] and, for one rank of several under an engine that is not
// supported, *[UnsupportedEngineError].
func FromEnv(lookup func(string) (string, bool)) (*Placement, error) {
	for _, e := range engines {
		r := &reader{engine: e.name, lookup: lookup, from: map[string]string{}}
		if !e.seen(r) {
			continue
		}
		p := e.place(r)
		if r.err != nil {
			return nil, r.err
		}
		p.Engine, p.From = e.name, r.from
		return &p, nil
	}
	for _, f := range foreign {
		r := &reader{engine: f.name, lookup: lookup, from: map[string]string{}}
		variable := f.size(r)
		if variable == "" {
			continue
		}
		world := r.number(variable, "")
		if r.err != nil {
			return nil, r.err
		}
		if world > 1 {
			return nil, &UnsupportedEngineError{Engine: f.name, Variable: variable, World: world}
		}
	}
	return nil, nil
}

// reader reads variables, remembers which, and keeps the first error.
type reader struct {
	engine string
	lookup func(string) (string, bool)
	from   map[string]string
	err    *EnvError
}

// has tells whether a variable is set to something.
func (r *reader) has(name string) bool {
	v, ok := r.lookup(name)
	return ok && v != ""
}

func (r *reader) firstSet(names ...string) string {
	for _, name := range names {
		if r.has(name) {
			return name
		}
	}
	return ""
}

// text reads a variable; if it is missing, need says what for.
func (r *reader) text(name, need string) string {
	v, ok := r.lookup(name)
	if !ok || v == "" {
		r.fail(name, need)
		return ""
	}
	r.from[name] = v
	return v
}

// number reads a variable that must be a number of 0 or more.
func (r *reader) number(name, need string) int {
	v := r.text(name, need)
	if v == "" {
		return 0
	}
	n, err := strconv.ParseUint(strings.TrimSpace(v), 10, 31)
	if err != nil {
		r.fail(name, "not a number of 0 or more")
		return 0
	}
	return int(n)
}

func (r *reader) fail(name, problem string) {
	if r.err != nil {
		return
	}
	v, ok := r.lookup(name)
	r.err = &EnvError{Engine: r.engine, Variable: name, Value: v, Set: ok && v != "", Problem: problem}
}

// seenTorchrun takes two of the three variables for a torch environment, be it
// incomplete: each alone is often left behind in a shell.
func seenTorchrun(r *reader) bool {
	if r.has("TORCHELASTIC_RUN_ID") {
		return true
	}
	n := 0
	for _, name := range []string{"RANK", "WORLD_SIZE", "MASTER_ADDR"} {
		if r.has(name) {
			n++
		}
	}
	return n >= 2
}

func placeTorchrun(r *reader) Placement {
	p := Placement{LocalRank: -1, LocalWorld: -1}
	if r.has("TORCHELASTIC_RUN_ID") {
		p.JobID = r.text("TORCHELASTIC_RUN_ID", "")
	}
	const need = "torchrun sets it together with the others of its variables"
	p.World = r.number("WORLD_SIZE", need)
	p.Rank = r.number("RANK", need)
	host := r.text("MASTER_ADDR", need)
	port := r.number("MASTER_PORT", need)
	// torchrun sets these too; other launchers of the same variables need not.
	whole := p.JobID != ""
	if whole || r.has("LOCAL_RANK") {
		p.LocalRank = r.number("LOCAL_RANK", need)
	}
	if whole || r.has("LOCAL_WORLD_SIZE") {
		p.LocalWorld = r.number("LOCAL_WORLD_SIZE", need)
	}
	switch {
	case r.err != nil:
	case p.World < 1:
		r.fail("WORLD_SIZE", "must be at least 1")
	case p.Rank >= p.World:
		r.fail("RANK", fmt.Sprintf("must be below WORLD_SIZE=%d", p.World))
	case p.LocalWorld == 0 || p.LocalWorld > p.World:
		r.fail("LOCAL_WORLD_SIZE", fmt.Sprintf("must be between 1 and WORLD_SIZE=%d", p.World))
	case p.LocalWorld > 0 && p.LocalRank >= p.LocalWorld:
		r.fail("LOCAL_RANK", fmt.Sprintf("must be below LOCAL_WORLD_SIZE=%d", p.LocalWorld))
	case p.LocalRank >= p.World:
		r.fail("LOCAL_RANK", fmt.Sprintf("must be below WORLD_SIZE=%d", p.World))
	case port < 1 || port > 65534:
		// The port after it has to exist too.
		r.fail("MASTER_PORT", "must be between 1 and 65534")
	}
	// torchrun's own store listens on MASTER_PORT.
	p.Rendezvous = net.JoinHostPort(strings.Trim(host, "[]"), strconv.Itoa(port+1))
	return p
}

// slurmSize looks for a step that srun started. A batch script sees
// SLURM_NTASKS (and SLURM_PROCID=0) too, but runs once.
func slurmSize(r *reader) string {
	if !r.has("SLURM_PROCID") || r.firstSet("SLURM_STEP_ID", "SLURM_STEPID") == "" {
		return ""
	}
	return r.firstSet("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")
}

// JobToken returns the token of a job whose ranks have no common commprobe
// parent that could have made one. It is COMMPROBE_TOKEN (64 hex digits) if
// that is set. Otherwise it is derived from what all ranks of p know: engine,
// job id, and rendezvous address.
//
// A derived token guards against accidents, not against attackers: it keeps
// two jobs on one network apart, but whoever knows or guesses the job's id and
// address can compute it. Set COMMPROBE_TOKEN where that matters.
func JobToken(p *Placement, lookup func(string) (string, bool)) (bootstrap.Token, error) {
	if text, ok := lookup(EnvToken); ok && text != "" {
		token, err := bootstrap.ParseToken(text)
		if err != nil {
			return bootstrap.Token{}, fmt.Errorf("%s: %w", EnvToken, err)
		}
		return token, nil
	}
	if p == nil {
		return bootstrap.Token{}, errors.New("job token: " + EnvToken + " is not set and no launcher was recognised")
	}
	mac := hmac.New(sha256.New, []byte("commprobe derived job token 1"))
	for _, part := range []string{p.Engine, p.JobID, p.Rendezvous} {
		fmt.Fprintf(mac, "%d:%s", len(part), part) // lengths keep the parts apart
	}
	return bootstrap.ParseToken(hex.EncodeToString(mac.Sum(nil)))
}
