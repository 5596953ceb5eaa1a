package rdma

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Moved is a counter of one side's port that should stand still on a healthy link and did not while a series was timed. It counts the whole port: other
// traffic moves it too.
type Moved struct {
	Side  string `json:"side"` // "client" or "server"
	Name  string `json:"name"` // as the driver calls it
	By    int64  `json:"by"`
	Means string `json:"means"`
}

const (
	meansRepeated  = "no answer in time: packets were lost, or --set ack-timeout is too short for this link; they were sent again"
	meansAgain     = "packets came a second time: their sender had given up waiting for the answer"
	meansGap       = "packets are missing in between: something on the path drops them (is PFC on for this traffic class?)"
	meansNotReady  = "the receiver had posted no receive in time"
	meansGaveUp    = "a QP failed after all its retries"
	meansMarked    = "congestion: switches marked packets (ECN), and the sender slowed down"
	meansCorrupt   = "packets arrived damaged: cable, transceiver or port"
	meansDiscarded = "this port dropped packets"
	meansNoBuffer  = "packets found no receive buffer and were dropped"
	meansWaited    = "data waited for the link: flow control or congestion holds the sender back"
	meansDown      = "the link went down"
)

// telling are the counters that say why a link is slow, of the kernel's port counters and of the drivers mlx4, mlx5, bnxt_re, irdma, efa, hns and rxe
// (drivers/infiniband/hw/*/…counters.c or hw_stats of each; Documentation/ABI/stable/sysfs-class-infiniband).
var telling = map[string]string{
	"symbol_error": meansCorrupt, "link_error_recovery": meansDown, "link_downed": meansDown, "port_rcv_errors": meansCorrupt,
	"port_rcv_remote_physical_errors": meansCorrupt, "local_link_integrity_errors": meansCorrupt, "excessive_buffer_overrun_errors": meansDiscarded,
	"port_xmit_discards": meansDiscarded, "port_xmit_wait": meansWaited, "VL15_dropped": meansDiscarded,

	"local_ack_timeout_err": meansRepeated, "packet_seq_err": meansGap, "out_of_sequence": meansGap, "duplicate_request": meansAgain, "implied_nak_seq_err": meansGap,
	"rnr_nak_retry_err": meansNotReady, "out_of_buffer": meansNoBuffer, "rx_icrc_encapsulated": meansCorrupt, "req_transport_retries_exceeded": meansGaveUp,
	"req_rnr_retries_exceeded": meansGaveUp, "np_cnp_sent": meansMarked, "rp_cnp_handled": meansMarked, "np_ecn_marked_roce_packets": meansMarked,
	"roce_adp_retrans": meansRepeated, "roce_adp_retrans_to": meansRepeated, "roce_slow_restart": meansRepeated, "rx_discards_phy": meansDiscarded,

	"to_retransmits": meansRepeated, "seq_err_naks_rcvd": meansGap, "rnr_naks_rcvd": meansNotReady, "missing_resp": meansGap, "max_retry_exceeded": meansGaveUp,
	"oos_drop_count": meansGap, "rx_cnp_pkts": meansMarked, "rx_ecn_marked_pkts": meansMarked, "rx_roce_discard_pkts": meansDiscarded, "tx_roce_discard_pkts": meansDiscarded,

	"tcpRetransSegs": meansRepeated, "cnpSent": meansMarked, "cnpHandled": meansMarked, "RxECNMrkd": meansMarked, "rxVlanErrors": meansCorrupt,
	"retrans_pkts": meansRepeated, "retrans_timeout_events": meansRepeated, "rx_drops": meansDiscarded,

	"completer_retry_err": meansRepeated, "out_of_seq_request": meansGap, "rcvd_seq_err": meansGap, "rcvd_rnr_err": meansNotReady, "send_rnr_err": meansNotReady,
	"retry_exceeded_err": meansGaveUp, "retry_rnr_exceeded_err": meansGaveUp, "send_err": meansDiscarded,
}

// readCounters reads the telling ones of a port below root, /sys but for tests. A port without any, or whose files cannot be read, gives none.
func readCounters(root, device string, port int) map[string]int64 {
	out := make(map[string]int64)
	dir := filepath.Join(root, "class/infiniband", device)
	for _, sub := range []string{"hw_counters", filepath.Join("ports", strconv.Itoa(port), "counters"), filepath.Join("ports", strconv.Itoa(port), "hw_counters")} {
		entries, err := os.ReadDir(filepath.Join(dir, sub))
		if err != nil {
			continue
		}
		for _, e := range entries {
			if _, ok := telling[e.Name()]; !ok {
				continue
			}
			b, err := os.ReadFile(filepath.Join(dir, sub, e.Name()))
			if err != nil {
				continue // some drivers list counters that the hardware lacks
			}
			if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil {
				out[e.Name()] = n
			}
		}
	}
	return out
}

// moved compares two readings of one side. A counter that went backwards was reset meanwhile and says nothing.
func moved(side string, before, after map[string]int64) []Moved {
	var out []Moved
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if was, ok := before[name]; ok && after[name] > was {
			out = append(out, Moved{side, name, after[name] - was, telling[name]})
		}
	}
	return out
}
