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
	o.plan = o.s.Plan
	if err := o.checkDevices(); err != nil {
		return finalMsg{}, err
	}
	skipped := o.plan.supported(nccl.Version(o.reports[0].NCCL), o.minCompute())
	if len(o.plan.Types) == 0 {
		return finalMsg{}, &Failure{Kind: FailUsage, Rank: -1, Phase: "plan", Text: fmt.Sprintf("%s: %s", skipped[0].What, skipped[0].Why)}
	}
	note, err := o.limitMemory()
	if err != nil {
		return finalMsg{}, err
	}
	msg := finalMsg{Plan: o.plan, Drivers: map[string]int{}, First: map[string]int{}, Job: o.job}
	for r, rep := range o.reports {
		msg.Drivers[rep.HostKey] += rep.Drivers
		if _, ok := msg.First[rep.HostKey]; !ok {
			msg.First[rep.HostKey] = r
		}
	}
	if o.number > 1 {
		return msg, nil
	}
	o.out.Skipped = skipped
	if note != "" {
		o.out.Notes = append(o.out.Notes, result.Note{Severity: "warning", Text: note})
	}
	o.out.Config = o.plan.config(o.s.Runs)
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
	for r, rep := range o.reports {
		room := rep.Free - gpuReserve
		text := fmt.Sprintf("%d bytes free − %d reserved", rep.Free, int64(gpuReserve))
		if o.plan.Engine == "host" {
			share := int64(ranksOn[rep.HostKey])
			room = rep.Free / share * 4 / 5
			text = fmt.Sprintf("%d bytes free ÷ %d ranks × 0.8", rep.Free, share)
		}
		if limit < 0 || room/2 < limit {
			limit, who, how = max(0, room/2)&^4095, r, text
		}
	}
	if int64(o.plan.MaxBytes) <= limit {
		return "", nil
	}
	text := fmt.Sprintf("rank %d has room for %d bytes a buffer: (%s) ÷ 2 buffers", who, limit, how)
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
