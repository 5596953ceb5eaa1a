package diagnose

import (
	"path"
	"slices"

	"github.com/commprobe/commprobe/hanglab/evidence"
)

// job is the evidence in the order that rules need it.
type job struct {
	e      *evidence.Evidence
	asks   *asks
	dumps  []*evidence.Dump // the best one of each rank
	groups []*group         // from dumps
	by     map[int]*evidence.Dump
	logs   *logs
	found  []*finding

	forMemory []int            // ranks whose end by a kill for memory is told
	others    []*evidence.Dump // of another job
	survived  []survival       // errors that were caught
}

func newJob(e *evidence.Evidence) *job {
	j := &job{e: e, asks: newAsks(), by: map[int]*evidence.Dump{}}
	j.dumps, j.others = oneJob(bestDumps(e.Dumps))
	for _, d := range j.dumps {
		j.by[d.Rank] = d
	}
	j.groups = groupsOfDumps(j.dumps, j.asks)
	j.logs = readLogs(e)
	return j
}

// whereNone is the place of evidence that is missing: the folder's first dump.
func (j *job) whereNone() evidence.Where {
	if len(j.dumps) == 0 {
		return evidence.Where{}
	}
	return evidence.Where{File: path.Dir(j.dumps[0].Where.File)}
}

// add takes findings that are not nil.
func (j *job) add(list ...*finding) {
	for _, f := range list {
		if f != nil {
			j.found = append(j.found, f)
		}
	}
}

// ranksOf are the distinct ranks of facts, ascending.
func ranksOf(facts []*evidence.Fact) (ranks []int) {
	for _, f := range facts {
		if f.Rank >= 0 {
			ranks = append(ranks, f.Rank)
		}
	}
	slices.Sort(ranks)
	return slices.Compact(ranks)
}
