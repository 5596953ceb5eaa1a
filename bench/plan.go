package bench

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/nccl"
)

// Placement says how ranks map to processes and threads.
type Placement string

// The placements. nccl-tests calls them MPI processes, -t N -g 1 and -g N.
const (
	PlaceProcess Placement = "process" // one process a rank
	PlaceThread  Placement = "thread"  // one process, one thread a rank
	PlaceGroup   Placement = "group"   // one process, one thread that groups all ranks' calls
)

// ParsePlacement finds a placement by name.
func ParsePlacement(s string) (Placement, error) {
	switch p := Placement(s); p {
	case PlaceProcess, PlaceThread, PlaceGroup:
		return p, nil
	}
	return "", fmt.Errorf("unknown placement %q: use process, thread or group", s)
}

// Plan is what to measure. It is plain data: the coordinator sends it to all workers.
type Plan struct {
	Collectives []string
	Types       []string // nccl-tests' names
	Ops         []string
	Engine      string // "native" or "host"
	NCCLPath    string // "" searches
	CUDARTPath  string // "" searches
	Placement   Placement
	World       int
	MinBytes    result.Bytes
	MaxBytes    result.Bytes
	StepFactor  float64 // > 1, or 0 when StepBytes is used
	StepBytes   result.Bytes
	Iters       int
	ItersExact  bool
	Warmup      int
	Check       int
	QuietCores  bool          // look for a processor with a quiet neighbour before each timed series
	Timeout     time.Duration // for each phase: join, initialisation, each size
	Inject      Inject        // a planted fault, for proving that it is found
}

// Inject names a fault to plant before each check.
type Inject struct {
	Rank    int
	Element bool // flip one bit of one received element on Rank
}

// MaxIters is the largest accepted number of iterations.
const MaxIters = 1_000_000

// Validate refuses what cannot be run, in words that say what to do.
func (p *Plan) Validate() error {
	switch {
	case len(p.Collectives) == 0:
		return errors.New("no collective to measure")
	case p.World < 1:
		return fmt.Errorf("-g %d: at least one rank is needed", p.World)
	case p.MinBytes < 1:
		return fmt.Errorf("-b %d: the smallest size must be at least 1 byte", p.MinBytes)
	case p.MaxBytes < p.MinBytes:
		return fmt.Errorf("-e %d is smaller than -b %d", p.MaxBytes, p.MinBytes)
	case p.Iters < 1 || p.Iters > MaxIters:
		return fmt.Errorf("-n %d: iterations must be between 1 and %d", p.Iters, MaxIters)
	case p.Warmup < 0 || p.Warmup > MaxIters:
		return fmt.Errorf("-w %d: warm-up iterations must be between 0 and %d", p.Warmup, MaxIters)
	case p.Check < 0 || p.Check > 1000:
		return fmt.Errorf("-c %d: checks must be between 0 and 1000", p.Check)
	case p.Timeout <= 0:
		return errors.New("-T must be more than 0: a wait without an end is what this tool is there to avoid")
	}
	if err := p.validateSteps(); err != nil {
		return err
	}
	_, err := p.steps()
	return err
}

func (p *Plan) validateSteps() error {
	if p.MinBytes == p.MaxBytes {
		return nil
	}
	if p.StepFactor != 0 {
		if !(p.StepFactor > 1) || math.IsInf(p.StepFactor, 0) {
			return fmt.Errorf("-f %g: the factor between sizes must be more than 1 (1.5 works)", p.StepFactor)
		}
		return nil
	}
	if p.StepBytes < 1 {
		return fmt.Errorf("-i %d: the step between sizes must be at least 1 byte", p.StepBytes)
	}
	return nil
}

// maxSizes bounds a sweep's rows of one collective, type and op.
const maxSizes = 10000

// Sizes lists the message sizes in bytes, ascending, without repeats.
func (p *Plan) Sizes() ([]result.Bytes, error) {
	var out []result.Bytes
	for size := p.MinBytes; size <= p.MaxBytes; {
		out = append(out, size)
		if len(out) > maxSizes {
			return nil, fmt.Errorf("more than %d sizes between -b %d and -e %d: use a larger -i or -f", maxSizes, p.MinBytes, p.MaxBytes)
		}
		next := size + p.StepBytes
		if p.StepFactor > 1 {
			f := float64(size) * p.StepFactor
			if f >= math.MaxInt64 {
				break
			}
			next = max(result.Bytes(f), size+1)
		}
		if next <= size {
			break // one size, or past the largest number
		}
		size = next
	}
	return out, nil
}

// cell is one combination of the plan that gives a table of sizes.
type cell struct {
	coll  *collective
	dtype nccl.DataType
	op    nccl.RedOp
}

func (p *Plan) cells() ([]cell, error) {
	var out []cell
	for _, name := range p.Collectives {
		c, err := findCollective(name)
		if err != nil {
			return nil, err
		}
		for _, tn := range p.Types {
			t, err := nccl.ParseDataType(tn)
			if err != nil {
				return nil, fmt.Errorf("-d: %w", err)
			}
			for _, on := range p.Ops {
				op, err := nccl.ParseRedOp(on)
				if err != nil {
					return nil, fmt.Errorf("-o: %w", err)
				}
				out = append(out, cell{c, t, op})
			}
		}
	}
	if len(out) == 0 {
		return nil, errors.New("no data type or no operator to measure")
	}
	return out, nil
}

// step is one row to be: a cell at a size.
type step struct {
	cell
	layout layout
	ask    result.Bytes // size asked for
}

// steps lists every row in order. Sizes that hold the same number of elements as the one before (or none) are left out.
func (p *Plan) steps() ([]step, error) {
	cells, err := p.cells()
	if err != nil {
		return nil, err
	}
	sizes, err := p.Sizes()
	if err != nil {
		return nil, err
	}
	var out []step
	for _, c := range cells {
		last := result.Count(0)
		for _, size := range sizes {
			l := c.coll.layout(p.World, size, c.dtype)
			if l.count == last {
				continue
			}
			last = l.count
			out = append(out, step{c, l, size})
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("-e %d holds not one element of %v", p.MaxBytes, p.Types)
	}
	return out, nil
}

// supported removes types that the library or the GPUs lack and tells why. minCompute is the lowest compute capability of all ranks (90 for
// 9.0); 0 is the host engine, which has every type.
func (p *Plan) supported(version nccl.Version, minCompute int) []result.Skipped {
	var out []result.Skipped
	p.Types = slices.DeleteFunc(slices.Clone(p.Types), func(name string) bool {
		t, err := nccl.ParseDataType(name)
		if err != nil || !t.IsFloat8() {
			return false
		}
		why := ""
		switch {
		case version < nccl.Since224:
			why = fmt.Sprintf("needs NCCL 2.24 or newer, the loaded library is %s", version)
		case minCompute != 0 && minCompute < 90:
			why = fmt.Sprintf("needs GPUs of compute capability 9.0 or newer, the oldest here is %d.%d", minCompute/10, minCompute%10)
		}
		if why != "" {
			out = append(out, result.Skipped{What: "type " + name, Why: why})
		}
		return why != ""
	})
	return out
}

// config is the plan as the result documents it.
func (p *Plan) config(runs int) result.Config {
	native := p.Engine == "native"
	return result.Config{
		Collectives: p.Collectives, Types: p.Types, Ops: p.Ops, Engine: p.Engine, Placement: string(p.Placement), World: p.World,
		MinBytes: p.MinBytes, MaxBytes: p.MaxBytes, StepFactor: p.StepFactor, StepBytes: p.StepBytes,
		QuietCores: p.QuietCores, Iters: p.Iters, ItersExact: p.ItersExact, Warmup: p.Warmup, Check: p.Check, TimeoutS: p.Timeout.Seconds(), Runs: runs,
		Parity: result.Parity{NCCLMemAlloc: native, NVLinkCentricSched: native, OffsetRotation: true, Average: "mean"},
	}
}
