// Package ncclog reads what NCCL writes under NCCL_DEBUG: it turns the lines of any number of processes, files and versions (2.10 to 2.31) into
// one Log that says who took part, what was decided, why, and what went wrong. It needs no GPU and no NCCL.
//
// The way down is Log → Process (one a host and pid; what a library decides once) and Log → Comm → Rank (what is decided once a communicator).
// Every fact carries the Line it was read from. What a log does not say is nil, an empty slice or, where noted, -1; never a guess, except
// where a field says "worked out".
//
// Memory grows with communicators and different facts, not with lines: what repeats is counted, and each list has a limit (see Dropped).
package ncclog

// Line is a place in a log.
type Line struct {
	File string `json:"file"`           // as given, "stdin" for standard input
	N    int    `json:"line"`           // from 1
	Text string `json:"text,omitempty"` // the message without its prefix, at most 1000 bytes; empty for facts of which there are thousands (edges, trees)
	Time string `json:"time,omitempty"` // the time stamp in front of it as printed, without brackets; empty: none
}

// Fact is a value with its evidence.
type Fact[T any] struct {
	Value T    `json:"value"`
	At    Line `json:"at"`
}

// Log is all that was read.
type Log struct {
	Files     []File     `json:"files,omitempty"`
	Processes []*Process `json:"processes,omitempty"` // in order of appearance
	Comms     []*Comm    `json:"comms,omitempty"`     // in order of appearance
	Warnings  []*Warning `json:"warnings,omitempty"`  // WARN lines of all processes, equal ones of a process once; in order of appearance
	Versions  []Version  `json:"versions,omitempty"`  // every different version string, also the bare line that has no process
	Failures  []Failure  `json:"failures,omitempty"`  // lines of the program or launcher that say how NCCL or the job ended; equal ones once
	Counts    Counts     `json:"counts"`
}

// File is one input.
type File struct {
	Name  string `json:"name"`
	Lines int    `json:"lines"`
	Bytes int64  `json:"bytes"`           // after decompression
	NCCL  int    `json:"nccl"`            // lines of NCCL among them
	Cut   bool   `json:"cut,omitempty"`   // ends in mid-line: the process was killed, crashed or is still running
	Error string `json:"error,omitempty"` // reading ended early, e.g. a damaged gz
}

// Counts is what the reader met.
type Counts struct {
	Lines   int            `json:"lines"`
	NCCL    int            `json:"nccl"`              // lines of NCCL or its plugins, known or not
	Other   int            `json:"other"`             // lines of anything else
	Torn    int            `json:"torn"`              // records that stood in the middle of another line, or tails without a beginning
	Long    int            `json:"long"`              // lines longer than the limit; the rest of each was skipped
	Dropped map[string]int `json:"dropped"`           // facts left out because a list was full, by list
	Unknown []UnknownKind  `json:"unknown,omitempty"` // messages of NCCL that this package does not know, by kind
}

// UnknownKind is a form of message that this package does not know, digits replaced by #.
type UnknownKind struct {
	Kind  string `json:"kind"`
	Count int    `json:"count"`
	First Line   `json:"first"`
}

// Version is one version string that was seen.
type Version struct {
	NCCL      string `json:"nccl"`                // "2.27.7"
	CUDA      string `json:"cuda"`                // "12.8", what the library was built with
	Bare      bool   `json:"bare"`                // seen on a line without a process only; up to 2.21 rank 0 alone prints it so
	Processes []int  `json:"processes,omitempty"` // indices in Log.Processes
	Count     int    `json:"count"`
	At        Line   `json:"at"` // first
}

// Setting is a variable or configuration value in force.
type Setting struct {
	Name   string `json:"name"` // "NCCL_IB_HCA"; for From "program" the name in ncclConfig_t, e.g. "Blocking"
	Value  string `json:"value"`
	From   string `json:"from"`             // one of the From… constants
	Plugin string `json:"plugin,omitempty"` // who set it, for FromPlugin
	At     Line   `json:"at"`
}

// Where a Setting came from.
const (
	FromEnvironment = "environment" // "set by environment to": the environment, or a configuration file, which NCCL does not tell apart
	FromEcho        = "echo"        // "set to": NCCL repeats the value where it uses it; in logs without the ENV subsystem the only trace
	FromProgram     = "program"     // ncclConfig_t ("Comm config X set to")
	FromOverride    = "override"    // the environment replaced the program's ncclConfig_t value ("reset to NCCL_X=")
	FromPlugin      = "plugin"      // a plugin changed the environment, e.g. aws-ofi-nccl
	FromRefused     = "refused"     // NCCL did not accept the value and went on with its own
)

// Process is one process that wrote log lines: what NCCL finds out once a process. Lines without a prefix make one Process a file with
// Host "" and PID 0.
type Process struct {
	Index int    `json:"index"` // in Log.Processes
	Host  string `json:"host"`
	PID   int    `json:"pid"`
	Label string `json:"label,omitempty"` // what the launcher put in front of its lines, e.g. "[1,3]<stdout>:" or "3:"
	First Line   `json:"first"`           // first line of it
	Last  Line   `json:"last"`            // last line of it, without Text
	Lines int    `json:"lines"`           // of NCCL

	Version    *Fact[string]  `json:"version,omitempty"`    // "2.27.7"; nil: not printed by this process (see Form, Log.Versions)
	CUDABuild  string         `json:"cudaBuild"`            // CUDA version the library was built with, "12.8"
	Git        *Fact[string]  `json:"git,omitempty"`        // branch and commit, 2.29+
	Driver     *Fact[string]  `json:"driver,omitempty"`     // newest CUDA the driver supports: "12.2" (of cudaDriverVersion 12020)
	Form       string         `json:"form"`                 // versions that the form of the lines allows, worked out: "2.18-2.20", "2.27+"; "" unknown
	Libraries  []Library      `json:"libraries,omitempty"`  // files named in the log: plugins, NVML, libibverbs
	Env        []Setting      `json:"env,omitempty"`        // different settings, in order of appearance
	Bootstrap  *Address       `json:"bootstrap,omitempty"`  // interface used to find each other
	OOB        *Address       `json:"oob,omitempty"`        // interface of the handshakes of NET/IB
	NICs       []NIC          `json:"nics,omitempty"`       // what NET/IB (or the plugin in its place) uses
	NoIB       []Fact[string] `json:"noIB,omitempty"`       // why NET/IB is not used: "no device", "libibverbs missing"; empty: not said
	SocketIfs  []Address      `json:"socketIfs,omitempty"`  // interfaces of NET/Socket
	Networks   []Fact[string] `json:"networks,omitempty"`   // different "Using network X" of this process
	Plugins    []Plugin       `json:"plugins,omitempty"`    // searches and their outcome
	NICGDR     []NICGDR       `json:"nicGDR,omitempty"`     // whether the NIC side offers GPUDirect RDMA
	DMABUF     []Fact[int]    `json:"dmabuf,omitempty"`     // GPU devices with DMA-BUF
	Multicast  []Multicast    `json:"multicast,omitempty"`  // NVLS multicast support of each GPU
	P2POff     []Fact[string] `json:"p2pOff,omitempty"`     // lines that say that P2P between two GPUs is refused
	Affinity   []Fact[string] `json:"affinity,omitempty"`   // "GPU 0: 0-63", one a GPU
	ProxyCores []ProxyCore    `json:"proxyCores,omitempty"` // where proxy threads run
	MNNVL      []MNNVL        `json:"mnnvl,omitempty"`      // fabric state of each GPU
	QPs        []QP           `json:"qps,omitempty"`        // different kinds of connections of NET/IB, counted
	IBErrors   []*IBError     `json:"ibErrors,omitempty"`   // completion errors and asynchronous events, equal ones once
	Retries    []Retry        `json:"retries,omitempty"`    // connections that were refused and tried again, by peer
	Traces     []*ReturnTrace `json:"traces,omitempty"`     // "file:line -> rc", different ones
	System     *System        `json:"system,omitempty"`     // the topology NCCL saw, first dump
	RAS        *Fact[string]  `json:"ras,omitempty"`        // address where the RAS client may ask
	RASEvents  []Fact[string] `json:"rasEvents,omitempty"`  // dead peers, time-outs
	Notices    []*Notice      `json:"notices,omitempty"`    // other messages of interest, equal ones once

	lo, hi int // versions 2.lo to 2.hi that Form stands for; 0, 0 where it is empty
}

// Library is a file that was loaded or named.
type Library struct {
	Name string `json:"name"` // what it is for: "net plugin", "tuner", "nvml"
	Path string `json:"path"`
	At   Line   `json:"at"`
}

// Address is a network interface and its address.
type Address struct {
	Interface string `json:"interface"`      // "eth0"
	Addr      string `json:"addr"`           // "10.0.4.51", "fe80::1%ib0"; no port
	Port      int    `json:"port,omitempty"` // 0: chosen by the kernel
	At        Line   `json:"at"`
}

// NIC is one device of NET/IB.
type NIC struct {
	Index     int      `json:"index"`
	Name      string   `json:"name"` // "mlx5_0"
	Port      int      `json:"port"`
	Link      string   `json:"link"` // "IB", "RoCE" or what stands there
	SHARP     bool     `json:"sharp,omitempty"`
	SpeedMbps int      `json:"speedMbps"` // 0: not printed
	Provider  string   `json:"provider,omitempty"`
	PCIPath   string   `json:"pciPath,omitempty"`
	Adaptive  *bool    `json:"adaptive,omitempty"` // adaptive routing
	Merged    []string `json:"merged,omitempty"`   // physical devices of a fused NIC
	Virtual   bool     `json:"virtual,omitempty"`  // "Made virtual device", also of one port
	Relaxed   bool     `json:"relaxed,omitempty"`  // PCIe relaxed ordering on
	At        Line     `json:"at"`
}

// Outcomes of a Plugin search.
const (
	PluginLoaded   = "loaded"
	PluginMissing  = "not found" // harmless unless one was wanted
	PluginFailed   = "failed"    // found, or built in, but could not be initialised
	PluginUsed     = "assigned"  // given to a communicator
	PluginReady    = "initialized"
	PluginInternal = "internal" // NCCL says that it uses its own
	PluginProbe    = "probe"    // an interface version that the plugin does not have; noise
)

// Plugin is one result of looking for a plugin.
type Plugin struct {
	Kind    string `json:"kind"` // "net", "collnet", "tuner", "profiler", "env", "gin", "rma"
	Name    string `json:"name"` // library or plugin name, "" where not printed
	Outcome string `json:"outcome"`
	Reason  string `json:"reason,omitempty"`
	At      Line   `json:"at"`
}

// NICGDR says whether a NIC offers GPUDirect RDMA at all (nvidia_peermem or DMA-BUF).
type NICGDR struct {
	Net     string `json:"net"` // "IB", or the plugin
	Index   int    `json:"index"`
	NIC     string `json:"nic"`
	Enabled bool   `json:"enabled"`
	At      Line   `json:"at"`
}

// GDR is the decision for one GPU and one NIC. Not printed by default from 2.30: look at Edge.GDR then.
type GDR struct {
	GPU      string `json:"gpu"` // as printed: bus id (to 2.23), rank (2.24+)
	NIC      string `json:"nic"` // as printed: index or id
	Enabled  bool   `json:"enabled"`
	Distance int    `json:"distance"`       // number as printed; its meaning changed with versions
	Limit    int    `json:"limit"`          //
	Path     string `json:"path,omitempty"` // name of Distance: "PIX", "SYS"; worked out, "" if the version is not known
	LimitIs  string `json:"limitIs,omitempty"`
	Read     *int   `json:"read,omitempty"` // 1: also for sends
	Mode     string `json:"mode,omitempty"`
	PXN      bool   `json:"pxn,omitempty"`
	At       Line   `json:"at"`
}

// Multicast is NVLink SHARP support of a GPU.
type Multicast struct {
	Dev       int  `json:"dev"`
	Available bool `json:"available"`
	Channels  int  `json:"channels"` // 0: not printed
	At        Line `json:"at"`
}

// ProxyCore is the CPU core of a proxy thread.
type ProxyCore struct {
	Thread string `json:"thread"` // "Service", "Progress", "Service UDS"
	Dev    int    `json:"dev"`
	Core   int    `json:"core"`
	At     Line   `json:"at"`
}

// MNNVL is the fabric state of a GPU.
type MNNVL struct {
	BusID      string `json:"busID"`
	FabricUUID string `json:"fabricUUID"`
	CliqueID   string `json:"cliqueID"`
	State      int    `json:"state"` // -1: not printed
	HealthMask string `json:"healthMask,omitempty"`
	At         Line   `json:"at"`
}

// QP counts connections of one kind.
type QP struct {
	Dev   int    `json:"dev"` // -1: not printed
	Port  int    `json:"port"`
	MTU   int    `json:"mtu"`      // bytes
	GID   int    `json:"gidIndex"` // -1: addressed by LID
	Count int    `json:"count"`
	At    Line   `json:"at"`
	HCA   string `json:"hca,omitempty"`
}

// IBError is a failed completion or an asynchronous event of a device.
type IBError struct {
	Kind       string `json:"kind"`       // "completion" or "event"
	Status     int    `json:"status"`     // ibv_wc_status; -1: not printed
	StatusName string `json:"statusName"` // "RETRY_EXC", worked out for numbers
	VendorErr  int    `json:"vendorErr"`  // -1: not printed
	Opcode     int    `json:"opcode"`     // -1: not printed; meaningless for most errors
	Len        int64  `json:"len"`        // -1: not printed
	Request    string `json:"request"`    // "Send", "Recv", "" not printed
	HCA        string `json:"hca"`        // "" not printed
	Port       int    `json:"port"`       // 0: not printed
	Peer       string `json:"peer"`       // "10.0.0.2<44206>" or a host name
	LocalGID   string `json:"localGID,omitempty"`
	RemoteGID  string `json:"remoteGID,omitempty"`
	Event      string `json:"event,omitempty"` // "port error", "GID table changed"
	Fatal      bool   `json:"fatal"`           // NCCL called the event fatal
	Count      int    `json:"count"`
	At         Line   `json:"at"`
}

// Retry counts attempts to connect to a peer.
type Retry struct {
	Peer   string `json:"peer"` // "" where not printed
	Reason string `json:"reason"`
	Count  int    `json:"count"`
	At     Line   `json:"at"`
}

// ReturnTrace is a step of an error on its way up: a consequence, never a cause.
type ReturnTrace struct {
	Place  string `json:"place"` // "transport/net.cc:1008"
	Result int    `json:"result"`
	Count  int    `json:"count"`
	At     Line   `json:"at"`
}

// System is the graph that NCCL planned with.
type System struct {
	MaxBW   float64      `json:"maxBW"`   // GB/s
	TotalBW float64      `json:"totalBW"` // GB/s
	Links   []SystemLink `json:"links,omitempty"`
	At      Line         `json:"at"`
}

// SystemLink is one line "+ PCI[48.0] - GPU/1000" of a System.
type SystemLink struct {
	Type string  `json:"type"` // "PCI", "NVL", "SYS", "NET"
	BW   float64 `json:"bw"`   // GB/s
	From string  `json:"from"` // the node above it
	To   string  `json:"to"`
	At   Line    `json:"at"`
}

// Notice is a message of interest that has no place of its own in the model.
type Notice struct {
	Kind  string `json:"kind"` // short and stable, e.g. "collnet-off", "affinity-empty", "cumem-host-fallback"
	Count int    `json:"count"`
	At    Line   `json:"at"`
}

// Comm is one communicator: the ranks that printed the same id. Versions without ids in their lines (to 2.14, and splits of 2.23+) are put
// together by size, parent, colour and rank.
type Comm struct {
	Index  int     `json:"index"`           // in Log.Comms
	ID     string  `json:"id"`              // commId without 0x; "" in versions that do not print it
	NRanks int     `json:"nranks"`          // 0: never printed (the log ends, or begins, in the middle)
	Parent int     `json:"parent"`          // index of the communicator it was split from; -1: none or not known
	API    string  `json:"api"`             // "ncclCommInitRank", "ncclCommSplit"; "" to 2.20
	Color  *int    `json:"color,omitempty"` // of a split
	Split  *int    `json:"split,omitempty"` // number of the split of its parent
	Ranks  []*Rank `json:"ranks,omitempty"` // that wrote lines, by rank; fewer than NRanks where logs are missing

	Rings      []Ring         `json:"rings,omitempty"`      // one a channel, from rank 0 or put together from all ranks' neighbours
	Trees      []Tree         `json:"trees,omitempty"`      // one a channel, put together from all ranks
	NVLSHeads  []NVLSHead     `json:"nvlsHeads,omitempty"`  //
	Tuning     []TuningCell   `json:"tuning,omitempty"`     // the model's estimates
	MaxThreads []TuningMax    `json:"maxThreads,omitempty"` //
	Matrix     []MatrixCell   `json:"matrix,omitempty"`     // what NCCL_ALGO and NCCL_PROTO leave, 2.24+
	Selections []*Selection   `json:"selections,omitempty"` // what was chosen for each operation and size
	Mismatches []Mismatch     `json:"mismatches,omitempty"` // ranks whose calls differ from the others', first place each
	CC         *Fact[bool]    `json:"cc,omitempty"`         // confidential computing on
	DirectP2P  *Fact[string]  `json:"directP2P,omitempty"`  // text of "Check P2P Type"
	Forced     []Fact[string] `json:"forced,omitempty"`     // "Disabling LL128 …", "User asked for a minimum …"
}

// Rank is one rank of one communicator.
type Rank struct {
	Rank    int      `json:"rank"`              // -1: not printed
	Guessed bool     `json:"guessed,omitempty"` // no line says its number or communicator: worked out from the device and from what is missing
	Process *Process `json:"-"`
	Proc    int      `json:"process"` // index of Process
	TID     int      `json:"tid"`     // thread that initialised it
	CudaDev int      `json:"cudaDev"` // after CUDA_VISIBLE_DEVICES; -1 not printed
	NvmlDev int      `json:"nvmlDev"` // physical; -1 not printed (to 2.18.1)
	BusID   string   `json:"busID"`   // "1a000"
	Pointer string   `json:"pointer"` // the communicator's address in this process, "0x…"

	Start      *Line          `json:"start,omitempty"`      // Init START, 2.18+
	Complete   *Line          `json:"complete,omitempty"`   // Init COMPLETE
	End        *Fact[string]  `json:"end,omitempty"`        // last of "Destroy COMPLETE", "Abort START", "Abort COMPLETE", "Revoke …"
	Milestones []Fact[string] `json:"milestones,omitempty"` // how far it came, in order: "network", "start", "bootstrap", "topology", "channels", "rings", "trees", "complete" …

	NNodes     int   `json:"nNodes"`           // 0 in all four: not printed (to 2.19)
	LocalRanks int   `json:"localRanks"`       //
	LocalRank  int   `json:"localRank"`        //
	MNNVL      int   `json:"mnnvl"`            //
	Placed     *Line `json:"placed,omitempty"` // the line with these

	Network    *Fact[string] `json:"network,omitempty"` // "IB", "Socket", "AWS Libfabric"
	Config     []Setting     `json:"config,omitempty"`  // ncclConfig_t of the program
	GDR        []GDR         `json:"gdr,omitempty"`
	Edges      []Edge        `json:"edges,omitempty"` // connections this rank printed: all it sends by, and what it receives by NET
	Graphs     []Graph       `json:"graphs,omitempty"`
	RingLinks  []RingLink    `json:"ringLinks,omitempty"` // GRAPH
	Trees      []TreeLink    `json:"trees,omitempty"`
	NVLSTrees  []TreeLink    `json:"nvlsTrees,omitempty"`
	Totals     *Totals       `json:"totals,omitempty"`
	NVLS       *NVLS         `json:"nvls,omitempty"`
	P2PChunk   *Fact[int]    `json:"p2pChunk,omitempty"`   // bytes
	Thresholds *Fact[string] `json:"thresholds,omitempty"` // of threads
	RingPXN    *int          `json:"ringPXN,omitempty"`    // "Connected all rings, use ring PXN 0 GDR 1", 2.24+
	RingGDR    *int          `json:"ringGDR,omitempty"`    //
	Clique     *Fact[string] `json:"clique,omitempty"`     // "MNNVL 1 cliqueId …"
	NetDevs    *Fact[int]    `json:"netDevs,omitempty"`    // 2.30+

	Init      *InitTimings      `json:"init,omitempty"`
	Bootstrap *BootstrapTimings `json:"bootstrap,omitempty"`
	Calls     *Calls            `json:"calls,omitempty"` // COLL lines
}

// Edge is one connection of one channel.
type Edge struct {
	Channel   int    `json:"channel"`
	Conn      int    `json:"conn"` // 0 collectives, 1 send and receive; -1 not printed
	From      int    `json:"from"`
	To        int    `json:"to"`        // for CollNet both are the rank itself
	Transport string `json:"transport"` // "P2P", "SHM", "NET", "COLLNET"
	Via       string `json:"via"`       // as printed: "P2P/CUMEM", "NET/AWS Libfabric/0/GDRDMA"
	Dir       string `json:"dir"`       // "send" or "receive" for NET and COLLNET, else ""
	Net       string `json:"net,omitempty"`
	NetDev    int    `json:"netDev"`    // -1: no NET
	ProxyRank int    `json:"proxyRank"` // PXN: the rank whose NIC is used; -1: its own
	GDR       bool   `json:"gdr"`
	Shared    bool   `json:"shared,omitempty"`
	At        Line   `json:"at"` // without Text
}

// Ring is the order of the ranks on one channel.
type Ring struct {
	Channel int   `json:"channel"`
	Order   []int `json:"order,omitempty"` // starts with the rank that printed it, 0
	Cut     bool  `json:"cut,omitempty"`   // NCCL printed only the first ranks
	At      Line  `json:"at"`
}

// RingLink is a rank's neighbours on one channel.
type RingLink struct {
	Channel int  `json:"channel"`
	Prev    int  `json:"prev"`
	Next    int  `json:"next"`
	At      Line `json:"at"` // without Text
}

// TreeLink is a rank's place in the tree of one channel.
type TreeLink struct {
	Channel int   `json:"channel"`
	Up      int   `json:"up"` // -1: this rank is the root
	Down    []int `json:"down,omitempty"`
	At      Line  `json:"at"` // without Text
}

// Tree is the tree of one channel. Parent[r] is the rank above r, -1 for a root, -2 where r's log is missing.
type Tree struct {
	Channel int   `json:"channel"`
	Root    int   `json:"root"` // -1: not in the logs
	Parent  []int `json:"parent,omitempty"`
}

// NVLSHead is a line "NVLS Head".
type NVLSHead struct {
	Channel int   `json:"channel"`
	Ranks   []int `json:"ranks,omitempty"`
	At      Line  `json:"at"`
}

// Graph is the result of one search for channels, before doubling.
type Graph struct {
	Pattern   int     `json:"pattern"` // 1 balanced tree, 2 split tree, 3 tree, 4 ring, 5 NVLS, 6 CollNetDirect
	CrossNIC  int     `json:"crossNIC"`
	Channels  int     `json:"channels"`
	BWIntra   float64 `json:"bwIntra"` // GB/s a channel
	BWInter   float64 `json:"bwInter"`
	TypeIntra string  `json:"typeIntra"` // worst path: "NVL", "PIX", "SYS"
	TypeInter string  `json:"typeInter"`
	Same      int     `json:"sameChannels"`
	At        Line    `json:"at"`
}

// Totals are the channel counts a rank ended with. -1: not printed by this version. CollNet repeats Coll from 2.21 on and does not mean that
// CollNet is in use.
type Totals struct {
	Coll    int  `json:"coll"`
	CollNet int  `json:"collnet"`
	NVLS    int  `json:"nvls"`
	P2P     int  `json:"p2p"`
	PerPeer int  `json:"p2pPerPeer"`
	At      Line `json:"at"`
}

// NVLS is the line "NVLS comm". Sizes are bytes, -1 not printed.
type NVLS struct {
	HeadRank  int   `json:"headRank"`
	Heads     int   `json:"heads"`
	BuffSize  int64 `json:"buffSize"`
	PerRank   int64 `json:"perRank"`
	TotalSize int64 `json:"totalSize"`
	At        Line  `json:"at"`
}

// TuningCell is one estimate of NCCL's own model.
type TuningCell struct {
	Func      string  `json:"func"`      // "AllReduce"
	Algo      string  `json:"algo"`      // "Ring"
	Proto     string  `json:"proto"`     // "LL128"
	LatencyUS float64 `json:"latencyUS"` //
	BWGBs     float64 `json:"bwGBs"`     // 0: not used
	At        Line    `json:"at"`        // without Text
}

// TuningMax is the largest number of threads a block.
type TuningMax struct {
	Algo    string `json:"algo"`
	Proto   string `json:"proto"`
	Threads int    `json:"threads"`
}

// MatrixCell says whether an algorithm and protocol is open to a function: 0 off, 1 on, 2 on if safe.
type MatrixCell struct {
	Func  string `json:"func"`
	Algo  string `json:"algo"`  // "" where the row speaks of protocols only
	Proto string `json:"proto"` // "" where the row speaks of algorithms only
	State int    `json:"state"`
	At    Line   `json:"at"`
}

// Selection is what was chosen for calls of one kind and size.
type Selection struct {
	Func      string  `json:"func"` // "AllReduce"; "" in 2.20-2.22
	Kind      string  `json:"kind"` // "", "Symmetric", "Copy Engine", "Hierarchical CE"
	Bytes     int64   `json:"bytes"`
	Algo      string  `json:"algo"`      // "Ring"; also where NCCL printed a number
	Proto     string  `json:"proto"`     //
	Kernel    string  `json:"kernel"`    // of Kind Symmetric
	ChannelLo int     `json:"channelLo"` // -1: not printed
	ChannelHi int     `json:"channelHi"`
	Channels  int     `json:"channels"` // 0: not printed
	TimeUS    float64 `json:"timeUS"`   // the model's estimate, 2.20-2.23; 0 not printed
	Count     int     `json:"count"`
	At        Line    `json:"at"` // first
}

// InitTimings is the break-down of an initialisation, in seconds; Alloc is -1 in 2.22, which has no such figure.
type InitTimings struct {
	Total       float64 `json:"total"`
	Kernels     float64 `json:"kernels"`
	Alloc       float64 `json:"alloc"`
	Bootstrap   float64 `json:"bootstrap"`
	AllGathers  float64 `json:"allgathers"`
	Topo        float64 `json:"topo"`
	Graphs      float64 `json:"graphs"`
	Connections float64 `json:"connections"`
	Rest        float64 `json:"rest"`
	At          Line    `json:"at"`
}

// BootstrapTimings is the break-down of the bootstrap, in seconds. A large Recv is a rank that waited for the others.
type BootstrapTimings struct {
	Total  float64 `json:"total"`
	Create float64 `json:"create"`
	Send   float64 `json:"send"`
	Recv   float64 `json:"recv"`
	Ring   float64 `json:"ring"`
	Delay  float64 `json:"delay"`
	At     Line    `json:"at"`
}

// Call is what a COLL line says. Root is the peer of Send and Recv.
type Call struct {
	OpCount uint64 `json:"opCount"` // stays 0 on one node from 2.27.3 on
	Op      string `json:"op"`
	Count   int64  `json:"count"`
	Type    int    `json:"type"`
	RedOp   int    `json:"redOp"`
	Root    int    `json:"root"`
	N       int    `json:"n"`  // its place among this rank's collectives of the communicator, from 0; -1 for Send and Recv
	At      Line   `json:"at"` // without Text
}

// Calls sums up the COLL lines of a rank.
type Calls struct {
	Collectives int        `json:"collectives"` // how many of them
	P2P         int        `json:"p2p"`         // Send and Recv
	First       Call       `json:"first"`
	Last        []Call     `json:"last,omitempty"`  // the last ones, oldest first, at most 16
	Kinds       []CallKind `json:"kinds,omitempty"` // by operation, type and size
	LastOf      *Call      `json:"lastCollective,omitempty"`
}

// CallKind counts equal calls.
type CallKind struct {
	Op    string `json:"op"`
	Type  int    `json:"type"`
	Count int64  `json:"count"`
	Calls int    `json:"calls"`
}

// Mismatch is the first place where a rank's collectives differ from those of the first rank that came there (Ref). A rank that just made
// fewer calls is not in this list: compare Calls.Collectives. Lines are aligned by opCount where it counts, else by position.
type Mismatch struct {
	N    int   `json:"n"`    // place in the sequence, from 0
	Rank int   `json:"rank"` // the one that differs, or that all others differ from
	Call Call  `json:"call"`
	Ref  int   `json:"ref"` // rank
	Want Call  `json:"want"`
	Same []int `json:"same,omitempty"` // ranks that made the call Want at this place
}

// Warning is a WARN line.
type Warning struct {
	Process *Process `json:"-"`
	Proc    int      `json:"process"` // index; -1 for a line without a prefix in a file with none
	Dev     int      `json:"dev"`     // -1 not printed
	Place   string   `json:"place"`   // "transport/net_ib.cc:1295", "socket.cc:483"; a function name for some plugins
	Text    string   `json:"text"`
	ID      string   `json:"id"`      // of the catalogue, "" unknown
	Meaning string   `json:"meaning"` // what it says, from the catalogue
	Next    string   `json:"next"`    // what to check
	Effect  bool     `json:"effect"`  // a consequence of something earlier, here or on the peer
	Peer    string   `json:"peer,omitempty"`
	Count   int      `json:"count"`
	At      Line     `json:"at"` // first
}

// Failure is a line of the program around NCCL: a PyTorch watchdog, an exception, a launcher.
type Failure struct {
	Kind  string `json:"kind"` // "watchdog", "exception", "signal", "launcher"
	Count int    `json:"count"`
	At    Line   `json:"at"`
}

// Severities of a Finding.
const (
	Info  = "info"    // good to know
	Odd   = "warning" // slower or weaker than the machine could be, or risky
	Fault = "fault"   // the job failed or will fail
)

// Finding is a conclusion from a Log.
type Finding struct {
	Severity string `json:"severity"`           // Info, Odd or Fault
	ID       string `json:"id"`                 // short and stable, e.g. "socket-fallback"
	Title    string `json:"title"`              // one sentence: what, where
	Evidence []Line `json:"evidence,omitempty"` //
	Cost     string `json:"cost,omitempty"`     // what it costs, where that is known
	Next     string `json:"next,omitempty"`     // what to check
	Fix      string `json:"fix,omitempty"`      // what to do
	Effect   bool   `json:"effect,omitempty"`   // a consequence: it stands below its cause, and mending it alone cures nothing
	Of       string `json:"of,omitempty"`       // ID of the finding that it most likely follows from; "" with Effect: its cause is not in these logs
}
