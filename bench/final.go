package bench

import (
	"fmt"
	"slices"

	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/internal/bootstrap"
	"github.com/commprobe/commprobe/nccl"
)

// Memory that a rank keeps free of buffers: NCCL's own buffers and the context's growth on a GPU.
const gpuReserve = 2 << 30

// finalPlan checks what the ranks have against the plan, applies limits, and records the facts of the run.
func (o *oneRun) finalPlan() (finalMsg, error) {
	if err := o.checkDevices(); err != nil {
		return finalMsg{}, err
	}
	var err error
	if o.plan.Groups, err = o.groups(); err != nil {
		return finalMsg{}, err
	}
	version := nccl.Version(o.reports[0].NCCL)
	if why := o.plan.needs(version); why != "" {
		return finalMsg{}, &Failure{Kind: FailUsage, Rank: -1, Phase: "plan", Text: why}
	}
	skipped := o.plan.supported(version, o.minCompute())
	if len(o.plan.Types) == 0 {
		return finalMsg{}, &Failure{Kind: FailUsage, Rank: -1, Phase: "plan", Text: fmt.Sprintf("%s: %s", skipped[0].What, skipped[0].Why)}
	}
	note, err := o.limitMemory()
	if err != nil {
		return finalMsg{}, err
	}
	cells, refused, err := o.plan.cells()
	if err != nil {
		return finalMsg{}, &Failure{Kind: FailUsage, Rank: -1, Phase: "plan", Text: err.Error()}
	}
	steps, err := o.plan.stepsOf(cells)
	if err != nil {
		return finalMsg{}, &Failure{Kind: FailUsage, Rank: -1, Phase: "plan", Text: err.Error()}
	}
	if o.number == 1 && o.plan.bufferParts() > 2 {
		o.out.Notes = append(o.out.Notes, result.Note{Severity: "info", Text: "in-place of an exchange (alltoall, alltoallv, sendrecv, pairwise, bisection): input and result side by side in one buffer; NCCL promises nothing for an exchange through the same place"})
	}
	skipped = slices.Concat(skipped, refused, o.plan.leftOut(steps))
	msg := finalMsg{Plan: o.plan, Drivers: map[string]int{}, First: map[string]int{}, Job: o.job, TakesRings: o.s.Start != nil}
	for r, rep := range o.reports {
		msg.Drivers[rep.HostKey] += rep.Drivers
		if _, ok := msg.First[rep.HostKey]; !ok {
			msg.First[rep.HostKey] = r
		}
	}
	for _, k := range skipped {
		if !slices.Contains(o.out.Skipped, k) {
			o.out.Skipped = append(o.out.Skipped, k)
		}
	}
	if o.number > 1 {
		return msg, nil
	}
	if note != "" {
		o.out.Notes = append(o.out.Notes, result.Note{Severity: "warning", Text: note})
	}
	o.out.Config = o.s.config(&o.plan)
	o.out.Config.Parity.NVLinkCentricSched = o.plan.Engine == "native" && nccl.Version(o.reports[0].NCCL) >= nccl.Since228
	o.out.Config.Parity.NCCLMemAlloc = o.plan.Engine == "native" && nccl.Version(o.reports[0].NCCL) >= nccl.Since219
	o.recordFacts()
	return msg, nil
}

func (o *oneRun) minCompute() int {
	least := o.reports[0].Compute
	for _, r := range o.reports {
		least = min(least, r.Compute)
	}
	return least
}

// checkDevices refuses two ranks on one device, which NCCL would only tell in its log.
func (o *oneRun) checkDevices() error {
	seen := make(map[string]int)
	for r, rep := range o.reports {
		key := rep.HostKey + " " + rep.Rank.PCIBusID + " " + rep.Rank.UUID
		if first, twice := seen[key]; twice && o.plan.Engine == "native" {
			return &Failure{Kind: FailUsage, Rank: r, Host: rep.Rank.Host, Phase: "finding the devices",
				Text: fmt.Sprintf("uses the same GPU as rank %d (%s); NCCL needs one GPU a rank: start fewer ranks or check CUDA_VISIBLE_DEVICES and LOCAL_RANK", first, rep.Rank.PCIBusID)}
		}
		seen[key] = r
	}
	return nil
}

// limitMemory lowers MaxBytes to what every rank can hold twice (a send and a receive buffer) and says so with the arithmetic.
func (o *oneRun) limitMemory() (string, error) {
	ranksOn := make(map[string]int)
	for _, r := range o.reports {
		ranksOn[r.HostKey]++
	}
	limit, who, how := int64(-1), 0, ""
	buffers := int64(o.plan.bufferParts() * max(1, o.plan.Modes.Comms))
	for r, rep := range o.reports {
		room := rep.Free - gpuReserve
		text := fmt.Sprintf("%d bytes free − %d reserved", rep.Free, int64(gpuReserve))
		if o.plan.Engine == "host" {
			share := int64(ranksOn[rep.HostKey])
			room = rep.Free / share * 4 / 5
			text = fmt.Sprintf("%d bytes free ÷ %d ranks × 0.8", rep.Free, share)
		}
		if limit < 0 || room/buffers < limit {
			limit, who, how = max(0, room/buffers)&^4095, r, text
		}
	}
	if int64(o.plan.MaxBytes) <= limit {
		return "", nil
	}
	text := fmt.Sprintf("rank %d has room for %d bytes a buffer: (%s) ÷ %d buffers", who, limit, how, buffers)
	if limit < int64(o.plan.MinBytes) {
		return "", &Failure{Kind: FailUsage, Rank: who, Host: o.reports[who].Rank.Host, Phase: "plan", Text: "not enough memory: " + text}
	}
	note := fmt.Sprintf("-e lowered from %d to %d bytes: %s", o.plan.MaxBytes, limit, text)
	o.plan.MaxBytes = result.Bytes(limit)
	return note, nil
}

// recordFacts writes hosts, libraries and ranks into the result and notes where ranks differ.
func (o *oneRun) recordFacts() {
	env := &o.out.Environment
	seen := make(map[string]bool)
	byVersion := make(map[string][]int)
	for r, rep := range o.reports {
		rep.Rank.Group, _, _ = o.plan.place(r)
		o.out.Ranks = append(o.out.Ranks, rep.Rank)
		if !seen[rep.HostKey] {
			seen[rep.HostKey] = true
			env.Hosts = append(env.Hosts, rep.Host)
		}
		for _, lib := range rep.Libraries {
			if !slices.Contains(env.Libraries, lib) {
				env.Libraries = append(env.Libraries, lib)
			}
		}
		v := nccl.Version(rep.NCCL).String()
		byVersion[v] = append(byVersion[v], r)
	}
	if len(byVersion) > 1 {
		text := "ranks load different NCCL versions:"
		for v, ranks := range byVersion {
			text += fmt.Sprintf(" %s on ranks %s;", v, bootstrap.FormatRanks(ranks))
		}
		o.out.Notes = append(o.out.Notes, result.Note{Severity: "warning", Text: text + " they may not work together"})
	}
}

// recordMemory writes what each rank's device lost of its free memory.
func (o *oneRun) recordMemory(byes []goodbye) {
	if o.plan.Engine != "native" {
		o.out.Notes = append(o.out.Notes, result.Note{Severity: "info", Text: "-M: the host engine's devices have no memory of their own to report"})
		return
	}
	for r, rep := range o.ready {
		bytes := func(before, after int64) result.Bytes { return result.Bytes(before - after) }
		o.out.Ranks[r].Memory = &result.Memory{
			Init: bytes(rep.Free[0], rep.Free[1]), User: bytes(rep.Free[1], rep.Free[2]), Collective: bytes(rep.Free[2], byes[r].Free),
			Total: bytes(rep.Free[0], byes[r].Free),
		}
	}
}

// needs says what the plan wants that a version of NCCL lacks, "" when it has all.
func (p *Plan) needs(version nccl.Version) string {
	for _, n := range []struct {
		wanted bool
		what   string
		since  nccl.Version
	}{
		{p.Modes.Register == 1, "-R 1 (ncclCommRegister)", nccl.Since219},
		{p.Modes.Register == 2, "-R 2 (symmetric windows)", nccl.Since227},
		{p.Modes.CTAPolicy != nil, "-x (CTA policy)", nccl.Since227},
		{p.Modes.CTAPolicy != nil && *p.Modes.CTAPolicy == 2, "-x 2 (zero CTA)", nccl.Since228},
	} {
		if n.wanted && version < n.since {
			return fmt.Sprintf("%s needs NCCL %s or newer, the loaded library is %s (--nccl-lib loads another)", n.what, n.since, version)
		}
	}
	return ""
}
