package bench

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
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
	Root        int           // of collectives that have one: a rank, or AllRoots
	Average     Average       // over ranks, of the time shown
	Modes       result.Options
	Traffic     Matrix // alltoallv; nil: Modes.Spread decides
	Consistency bool   // fingerprints of results
	NaNCheck    bool   // look for NaN and infinity in the inputs of each check
	Record      int    // NCCL calls that the flight record holds of each communicator of each rank; 0: none is kept
	Dump        string // folder for the dumps of a run that ends badly
	Groups      []int  // which group each rank sweeps in; nil: all in one. The coordinator settles it from Modes.Split
}

// AllRoots as a root means every rank in turn.
const AllRoots = -1

// Average says which of the ranks' times is shown. The values are nccl-tests' -a.
type Average int

// The averages. AverageDefault is the mean, and the slowest rank for collectives whose ranks have different amounts to do.
const (
	AverageDefault Average = iota - 1
	AverageRank0
	AverageMean
	AverageMin
	AverageMax
)

func (a Average) String() string {
	switch a {
	case AverageRank0:
		return "rank 0"
	case AverageMin:
		return "min"
	case AverageMax:
		return "max"
	}
	return "mean"
}

// Inject names a fault to plant before each check: on the highest rank that has a result (Element) or that gives data (Drop).
type Inject struct {
	Element bool // flip one bit of one received element
	Drop    bool // the rank's input has no part in the result: the operator's neutral element, or nothing written
	NaN     bool // one element of the input is not a number
	Timed   bool // flip one bit of what the timed operations left
	Hang    bool // the rank leaves out one of the timed operations, and the others wait for it; not with PlaceGroup
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
	case p.Record < 0 || p.Record > MaxRecord:
		return fmt.Errorf("--record %d: calls to keep must be between 0 (no record) and %d", p.Record, MaxRecord)
	case p.Record > 0 && p.Dump == "":
		return errors.New("--dump: name a folder, or keep no record with --record 0")
	case p.Inject.Hang && (p.Placement == PlaceGroup || p.World < 2):
		return errors.New("--inject-hang needs ranks with threads of their own, two at least: one leaves an operation out and the others wait")
	case p.Timeout <= 0:
		return errors.New("-T must be more than 0: a wait without an end is what this tool is there to avoid")
	}
	for _, check := range []func() error{p.validateSteps, p.validateModes} {
		if err := check(); err != nil {
			return err
		}
	}
	cells, _, err := p.cells()
	if err != nil {
		return err
	}
	if p.Modes.Split != "" {
		return nil // the groups' sizes are known only when all hosts are
	}
	_, err = p.stepsOf(cells)
	return err
}

// maxComms bounds the communicators over the same GPUs: each has buffers and NCCL's own memory.
const maxComms = 16

func (p *Plan) validateModes() error {
	m := &p.Modes
	switch {
	case p.Root < AllRoots || p.Root >= p.World:
		return fmt.Errorf("-r %d: a rank from 0 to %d, or all", p.Root, p.World-1)
	case p.Average < AverageDefault || p.Average > AverageMax:
		return fmt.Errorf("-a %d: use 0 (rank 0), 1 (mean), 2 (min) or 3 (max)", p.Average)
	case m.Graph < 0 || m.Graph > 100_000:
		return fmt.Errorf("-G %d: launches of the graph must be between 0 (no graph) and 100000", m.Graph)
	case m.Graph > 0 && p.Iters*max(1, m.Aggregate) > 100_000:
		return fmt.Errorf("-G with -n %d -m %d: a graph of more than 100000 operations", p.Iters, m.Aggregate)
	case m.Graph > 0 && m.NullStream:
		return errors.New("-G with -y 1: work on the NULL stream cannot be captured into a graph")
	case m.Graph > 0 && m.Blocking != 0:
		return errors.New("-G with -z: inside a graph nothing can wait for the host")
	case m.Aggregate < 0 || m.Aggregate > 4096:
		return fmt.Errorf("-m %d: operations in a group must be between 1 and 4096", m.Aggregate)
	case m.Register < 0 || m.Register > 2:
		return fmt.Errorf("-R %d: use 0 (no), 1 (ncclCommRegister) or 2 (symmetric window)", m.Register)
	case m.CTAPolicy != nil && (*m.CTAPolicy < 0 || *m.CTAPolicy > 2):
		return fmt.Errorf("-x %d: use 0 (default), 1 (efficiency) or 2 (zero CTA)", *m.CTAPolicy)
	case m.Blocking < 0 || m.Blocking > 3:
		return fmt.Errorf("-z %d: use 0 (no), 1 (wait and barrier), 2 (wait) or 3 (wait and barrier, whose time is left out)", m.Blocking)
	case m.Cycles < 0:
		return fmt.Errorf("-N %d: cycles must be 1 or more, or 0 for until stopped", m.Cycles)
	case m.Unalign < 0 || m.Unalign > 1<<20:
		return fmt.Errorf("-u %d: a shift of 0 to %d elements", m.Unalign, 1<<20)
	case m.Unalign > 0 && m.Register == 2:
		return errors.New("-u with -R 2: shifted buffers would be outside what symmetric kernels take, and the others would be measured instead")
	case m.Comms < 0 || m.Comms > maxComms:
		return fmt.Errorf("--comms %d: communicators over the same GPUs must be between 1 and %d", m.Comms, maxComms)
	case m.Comms > 1 && m.NullStream:
		return errors.New("--comms with -y 1: communicators on one stream would not work at the same time")
	case !(m.Spread >= 0 && m.Spread <= 1):
		return fmt.Errorf("--spread %g: from 0 (equal parts) to 1 (by distance)", m.Spread)
	}
	return nil
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
	op    nccl.RedOp // Sum where the collective has none
	root  int        // 0 where the collective has none
}

func (c cell) name() string {
	text := c.coll.name + " " + c.dtype.String()
	if c.coll.reduces {
		text += " " + opName(c.op)
	}
	if c.coll.rooted {
		text += fmt.Sprintf(" root %d", c.root)
	}
	return text
}

// cells lists the combinations in order, and what of them cannot be.
func (p *Plan) cells() ([]cell, []result.Skipped, error) {
	types, ops, err := p.typesAndOps()
	if err != nil {
		return nil, nil, err
	}
	var out []cell
	var skipped []result.Skipped
	for _, name := range p.Collectives {
		c, err := findCollective(name)
		if err != nil {
			return nil, nil, err
		}
		if why := p.refuses(c); why != "" {
			skipped = append(skipped, result.Skipped{What: name, Why: why})
			continue
		}
		for _, t := range types {
			for _, op := range ops {
				for _, root := range p.roots(c) {
					out = append(out, cell{c, t, op, root})
				}
				if !c.reduces {
					break
				}
			}
		}
	}
	if len(out) == 0 {
		if len(skipped) > 0 {
			return nil, skipped, fmt.Errorf("nothing to measure: %s: %s", skipped[0].What, skipped[0].Why)
		}
		return nil, nil, errors.New("no data type or no operator to measure")
	}
	return out, skipped, nil
}

func (p *Plan) typesAndOps() (types []nccl.DataType, ops []nccl.RedOp, err error) {
	for _, name := range p.Types {
		t, err := nccl.ParseDataType(name)
		if err != nil {
			return nil, nil, fmt.Errorf("-d: %w", err)
		}
		types = append(types, t)
	}
	for _, name := range p.Ops {
		op, err := parseOp(name)
		if err != nil {
			return nil, nil, fmt.Errorf("-o: %w", err)
		}
		ops = append(ops, op)
	}
	return types, ops, nil
}

// refuses says why a collective cannot be measured with this plan, "" when it can.
func (p *Plan) refuses(c *collective) string {
	for _, w := range p.worlds() {
		if p.Modes.Split != "" && p.Groups == nil {
			break // how large the groups are is known only when all hosts are
		}
		if c.fits != nil && c.fits(w) != "" {
			return c.fits(w)
		}
	}
	if p.Modes.Aggregate > 1 && c.chained {
		return "its rounds follow each other, and -m would put them into one group"
	}
	return ""
}

func (p *Plan) roots(c *collective) []int {
	if !c.rooted {
		return []int{0}
	}
	if p.Root != AllRoots {
		return []int{p.Root}
	}
	out := make([]int, slices.Min(p.worlds()))
	for i := range out {
		out[i] = i
	}
	return out
}

// worlds has the number of ranks of each group.
func (p *Plan) worlds() []int {
	if p.Groups == nil {
		return []int{p.World}
	}
	out := make([]int, slices.Max(p.Groups)+1)
	for _, g := range p.Groups {
		out[g]++
	}
	return out
}

// place is the group of a rank, its rank there and the number of ranks there.
func (p *Plan) place(rank int) (group, at, world int) {
	if p.Groups == nil {
		return 0, rank, p.World
	}
	group = p.Groups[rank]
	for r, g := range p.Groups {
		if g != group {
			continue
		}
		if r < rank {
			at++
		}
		world++
	}
	return group, at, world
}

// shape is where a rank of a communicator stands in a cell.
func (p *Plan) shape(c cell, rank, world int) shape {
	return shape{world: world, rank: rank, root: c.root, traffic: &traffic{spread: p.Modes.Spread, bytes: p.Traffic}}
}

// bufferParts is how many times the largest message a rank holds: send buffer, receive buffer, and in the latter room for exchanges in place.
func (p *Plan) bufferParts() int {
	for _, name := range p.Collectives {
		if c, err := findCollective(name); err == nil && c.exchange {
			return 3
		}
	}
	return 2
}

// step is one row to be: a cell at a size.
type step struct {
	cell
	ask   result.Bytes // size asked for
	bytes result.Bytes // size in the first group's layout
}

// steps lists every row in order.
func (p *Plan) steps() ([]step, error) {
	cells, _, err := p.cells()
	if err != nil {
		return nil, err
	}
	return p.stepsOf(cells)
}

// stepsOf leaves out sizes that hold the same number of elements as the one before, or none.
func (p *Plan) stepsOf(cells []cell) ([]step, error) {
	sizes, err := p.Sizes()
	if err != nil {
		return nil, err
	}
	world := slices.Max(p.worlds())
	var out []step
	for _, c := range cells {
		last := result.Bytes(0)
		for _, size := range sizes {
			if l := c.coll.lay(p.shape(c, c.root, world), size, c.dtype); l.bytes != last {
				last = l.bytes
				out = append(out, step{c, size, l.bytes})
			}
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("-e %d is too small: %s", p.MaxBytes, tooSmall(world))
	}
	return out, nil
}

func tooSmall(world int) string {
	return fmt.Sprintf("each of %d ranks' part is a multiple of %d bytes where a message is divided, so it must have at least %d bytes", world, partAlign, world*partAlign)
}

// leftOut says which of the sizes asked for have no row, and why: collectives with the same reason together.
func (p *Plan) leftOut(steps []step) []result.Skipped {
	var out []result.Skipped
	var names [][]string // of each in out
	seen := make(map[string]bool)
	for _, st := range steps {
		if seen[st.coll.name] {
			continue
		}
		seen[st.coll.name] = true
		if st.ask <= p.MinBytes {
			continue
		}
		s := result.Skipped{What: fmt.Sprintf(" below %d bytes", st.ask), Why: p.whyEmpty(st.cell)}
		at := slices.Index(out, s)
		if at < 0 {
			at = len(out)
			out, names = append(out, s), append(names, nil)
		}
		names[at] = append(names[at], st.coll.name)
	}
	for i := range out {
		out[i].What = strings.Join(names[i], ", ") + out[i].What
	}
	return out
}

// whyEmpty says why small messages of a cell hold nothing.
func (p *Plan) whyEmpty(c cell) string {
	world := slices.Max(p.worlds())
	size := result.Bytes(c.dtype.Size())
	switch {
	case c.coll == &allToAllV:
		return fmt.Sprintf("parts are multiples of %d bytes, and all would be empty", partAlign)
	case c.coll.lay(p.shape(c, c.root, world), size, c.dtype).bytes > 0:
		return fmt.Sprintf("an element of %s has %d bytes", c.dtype, size)
	}
	return tooSmall(world)
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

// averageText names the average over ranks, and the collectives that have another one.
func (p *Plan) averageText() string {
	text := p.Average.String()
	for _, name := range p.Collectives {
		if c, err := findCollective(name); err == nil && c.slowest && p.Average == AverageDefault {
			text += " (" + name + ": the slowest)"
		}
	}
	return text
}

// config is the plan as the result documents it.
func (p *Plan) config(runs int) result.Config {
	native := p.Engine == "native"
	return result.Config{
		Collectives: p.Collectives, Types: p.Types, Ops: p.Ops, Engine: p.Engine, Placement: string(p.Placement), World: p.World,
		MinBytes: p.MinBytes, MaxBytes: p.MaxBytes, StepFactor: p.StepFactor, StepBytes: p.StepBytes,
		QuietCores: p.QuietCores, Iters: p.Iters, ItersExact: p.ItersExact, Warmup: p.Warmup, Check: p.Check, TimeoutS: p.Timeout.Seconds(), Runs: runs,
		Modes: p.Modes, Consistency: p.Consistency,
		Parity: result.Parity{NCCLMemAlloc: native, NVLinkCentricSched: native, OffsetRotation: true, Average: p.averageText()},
	}
}
