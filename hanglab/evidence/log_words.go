package evidence

// topic is what a word in a line may be about. A line is looked at further only if it has one of the words.
type topic uint8

// The topics, in the order in which their readers are asked; the first that takes a line ends it, so what says more stands first.
const (
	topicMarker topic = iota
	topicNCCL
	topicOurs // the laboratory's watchdog
	topicFingerprint
	topicSignal
	topicTimeout
	topicHeartbeat
	topicDesync
	topicBarrier
	topicExit // launchers and shells
	topicKernel
	topicOOM
	topicCUDA
	topicRemote
	topicGloo
	topicMeeting // who did not come
	topicNaN
	topicEnd // of the job as a whole
	topicProgress
	topicRankTag // "[rank": several writers may share the line
	topicTrace   // begins a traceback
	topicElastic // begins a report of torchrun
	topicPast    // begins a text that is no evidence
	topicMPI     // begins a report of mpirun
	topicPod     // names a pod that the next lines are about
	topicCount
)

// topicWords has every word in lower case: a line's capitals do not matter. Common English words are no good here.
var topicWords = [topicCount][]string{
	topicMarker:      {"lab_event "},
	topicNCCL:        {"nccl info", "nccl warn"},
	topicOurs:        {": time-out: ", ": heard from rank ", ": asynchronous error: ", " after its deadline", " could not be created: ", "the watchdog itself ", "the program has returned with", " after the alarm: ", "call check: ", " of communicator "},
	topicFingerprint: {"collectivefingerprint"},
	topicSignal:      {"dump signal", "signal dumping", "global timeout from another"},
	topicTimeout:     {"last enqueued", "ccl(seqnum=", "ccl(optype=", "stack trace of the failed collective"},
	topicHeartbeat:   {"watchdog got stuck", "heartbeat monitor timed out", "heartbeat stuck"},
	topicDesync:      {"timeout at collective", "never joined any coll", "finish collective #", "finished collective #", "snapshot of ranks", "lagging ranks that", "mismatched ranks that caused"},
	topicBarrier:     {"to perform barrier"},
	topicExit: {"(exitcode: ", "closing signal sig", "killed", "segmentation fault", "(core dumped)", "bus error", "aborted", "exited with", "terminated with", "exit code", "exitcode",
		"exited on signal", "oomkilled", "slurmstepd", "srun: error", "exits with return code", "mpi_abort was invoked", "bad termination", "] signal: ", "*** sig"},
	topicKernel:  {"nvrm: ", "sxid", "nvlink", "invoked oom", "oom-kill", "killed process", "mlx5_", "fallen off the bus", "aer: ", "pcie bus error", "link down", "link is down", "link up", "link is up", "link becomes ready", "nfs: server", "blocked for more than"},
	topicOOM:     {"out of memory", "outofmemory", "out_of_memory", "alloc_failed", "oom_kill"},
	topicCUDA:    {"cuda error", "cuda failure", "cuda_error_", "cudaerror", "illegal memory access", "device-side assert", "uncorrectable", "unspecified launch failure", "cublas_status", "cudnn_status", "hip error"},
	topicRemote:  {"nccl error in", "duplicate gpu detected", "ncclremoteerror", "ncclsystemerror", "ncclinternalerror", "ncclunhandledcudaerror", "ncclinvalid", "remote process exited", "connection closed by", "connection reset by peer", "broken pipe", "remote peer"},
	topicGloo:    {"timed out waiting", "gloo/transport"},
	topicMeeting: {"monitoredbarrier", "store based barrier", "clients joined"},
	topicEnd: {"cancelled at", "due to time limit", "walltime", "term_runlimit", "term_owner", "deadlineexceeded", "preempt", "node failure", "node_fail", "evicted", "low on resource",
		"death signal", "destroy_process_group() was not", "got signal: ", "restart worker group", "restarting worker group", "training complete", "training finished", "finished training", "training done", "done training",
		"training is complete", "training has ", "training ended", "training successful", "successfully", "workerstate.succeeded", "^c"},
	topicNaN:      {"nan", "isinf", ": inf", "=inf"},
	topicProgress: {" step ", "step=", "step:", "iteration", "iter:", "iter ", "steps:", "global_step", "it/s", "s/it"},
	topicRankTag:  {"[rank"},
	topicTrace:    {"traceback (most recent", "panic: ", "fatal error: ", "goroutine ", "terminated with the following error", "terminate called after throwing", "fatal python error: "},
	topicElastic:  {"root cause (first observed", "childfailederror", "failures:"},
	topicPast:     {"first independent cause: ", "what happened, in order"},
	topicMPI:      {"process name: [", "running at "},
	topicPod:      {"name:      "},
}

// wordScanner finds which topics have a word in a line, by one look-up a byte: it is the automaton of Aho and Corasick over few classes of bytes. States
// in which no word ends come first, so that one comparison tells them.
type wordScanner struct {
	class  [256]uint8 // 0: in no word
	shift  uint       // a state's row has 1<<shift entries
	next   []uint32   // rows, of where the next row begins
	output []uint32   // topics that end in a state
	ends   uint32     // the first row of a state in which a word ends
}

var lineWords = newWordScanner(topicWords[:])

func newWordScanner(topics [][]string) *wordScanner {
	s := &wordScanner{}
	classes := 1
	for _, words := range topics {
		for _, w := range words {
			for _, c := range []byte(w) {
				if s.class[c] == 0 {
					s.class[c] = uint8(classes)
					classes++
				}
			}
		}
	}
	for c := byte('a'); c <= 'z'; c++ {
		s.class[c-'a'+'A'] = s.class[c]
	}
	for 1<<s.shift < classes {
		s.shift++
	}
	s.addState()
	for t, words := range topics {
		for _, w := range words {
			s.addWord(w, uint32(1)<<t)
		}
	}
	s.link()
	s.arrange()
	return s
}

func (s *wordScanner) addState() uint32 {
	s.next = append(s.next, make([]uint32, 1<<s.shift)...)
	s.output = append(s.output, 0)
	return uint32(len(s.output) - 1)
}

func (s *wordScanner) addWord(w string, bit uint32) {
	at := uint32(0)
	for _, c := range []byte(w) {
		i := int(at)<<s.shift + int(s.class[c])
		to := s.next[i]
		if to == 0 {
			to = s.addState()
			s.next[i] = to
		}
		at = to
	}
	s.output[at] |= bit
}

// link fills the empty entries with where the longest suffix leads, level by level.
func (s *wordScanner) link() {
	suffix := make([]uint32, len(s.output))
	var queue []uint32
	for c := range 1 << s.shift {
		if to := s.next[c]; to != 0 {
			queue = append(queue, to)
		}
	}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		s.output[at] |= s.output[suffix[at]]
		for c := range 1 << s.shift {
			i := int(at)<<s.shift + c
			other := s.next[int(suffix[at])<<s.shift+c]
			if to := s.next[i]; to != 0 {
				suffix[to] = other
				queue = append(queue, to)
			} else {
				s.next[i] = other
			}
		}
	}
}

// arrange puts the states in which words end behind the others, and makes entries point to rows.
func (s *wordScanner) arrange() {
	place := make([]uint32, len(s.output))
	n := uint32(0)
	for _, ends := range []bool{false, true} {
		if ends {
			s.ends = n << s.shift
		}
		for i, topics := range s.output {
			if (topics != 0) == ends {
				place[i] = n
				n++
			}
		}
	}
	next, output := make([]uint32, len(s.next)), make([]uint32, len(s.output))
	for i, to := range s.output {
		output[place[i]] = to
		for c := range 1 << s.shift {
			next[int(place[i])<<s.shift+c] = place[s.next[i<<s.shift+c]] << s.shift
		}
	}
	s.next, s.output = next, output
}

// scan gives the topics of a line as bits.
func (s *wordScanner) scan(line []byte) uint32 {
	at, found := uint32(0), uint32(0)
	next, ends := s.next, s.ends
	for _, c := range line {
		at = next[at+uint32(s.class[c])]
		if at >= ends {
			found |= s.output[at>>s.shift]
		}
	}
	return found
}
