package doctor

import (
	"bytes"
	"errors"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
)

// kernelLog is what the kernel said since it started.
type kernelLog struct {
	from  string // the file
	lines []string
	why   string // why there is none
}

// logFiles are where a kernel's messages are, the fullest first. /dev/kmsg is the ring itself, which a file below another root is not.
var logFiles = []string{"dev/kmsg", "var/log/kern.log", "var/log/syslog", "var/log/messages", "var/log/dmesg"}

// maxLog bounds what is read of a log, from its end.
const maxLog = 16 << 20

// kernel reads the first of the logs that can be read and holds anything.
func (m *machine) kernel() *kernelLog {
	if m.klog != nil {
		return m.klog
	}
	m.klog = &kernelLog{}
	denied := ""
	for _, name := range logFiles {
		text, err := m.tail(name)
		if errors.Is(err, os.ErrPermission) && denied == "" {
			denied = "/" + name
		}
		if err == nil && len(text) > 0 {
			m.klog.from, m.klog.lines = "/"+name, sinceStart(text)
			return m.klog
		}
	}
	m.klog.why = "no kernel log can be read here"
	if denied != "" {
		m.klog.why = denied + " may not be read by this user"
	}
	return m.klog
}

// tail reads the end of a log, or all that the kernel's ring holds at this moment.
func (m *machine) tail(name string) ([]byte, error) {
	f, err := os.OpenFile(m.at(name), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Mode()&os.ModeCharDevice != 0 {
		return ring(f), nil
	}
	if info.Size() > maxLog {
		if _, err := f.Seek(-maxLog, io.SeekEnd); err != nil {
			return nil, err
		}
	}
	return io.ReadAll(io.LimitReader(f, maxLog))
}

// ring takes records of /dev/kmsg, "6,1,0,-;text", until there is none; a record that was overwritten (EPIPE) is passed over.
func ring(f *os.File) []byte {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil
	}
	var out bytes.Buffer
	record := make([]byte, 8192)
	err = raw.Read(func(fd uintptr) bool {
		for out.Len() < maxLog {
			n, err := syscall.Read(int(fd), record)
			if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.EINTR) {
				continue
			}
			if err != nil || n <= 0 {
				break
			}
			out.Write(record[:n])
			if record[n-1] != '\n' {
				out.WriteByte('\n')
			}
		}
		return true
	})
	if err != nil {
		return nil
	}
	return out.Bytes()
}

// sinceStart drops what an earlier start of the kernel wrote: its first line names its version. A log that begins later holds nothing older.
func sinceStart(text []byte) []string {
	if i := bytes.LastIndex(text, []byte("Linux version ")); i >= 0 {
		text = text[bytes.LastIndexByte(text[:i], '\n')+1:]
	}
	var out []string
	for line := range bytes.Lines(text) {
		out = append(out, strings.TrimRight(string(line), "\r\n"))
	}
	return out
}

// xid is a message of NVIDIA's driver about a GPU, or (switch) about an NVSwitch.
type xid struct {
	bus    string
	code   int
	isSXid bool
	text   string
}

var xidPattern = regexp.MustCompile(`(S?Xid) \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)(?:,\s*(.*))?`)

func (k *kernelLog) xids() []xid {
	var out []xid
	for _, line := range k.lines {
		if !strings.Contains(line, "Xid (") {
			continue
		}
		if f := xidPattern.FindStringSubmatch(line); f != nil {
			code, err := strconv.Atoi(f[3])
			if err != nil {
				continue
			}
			out = append(out, xid{bus: f[2], code: code, isSXid: f[1] == "SXid", text: f[4]})
		}
	}
	return out
}

// xidMeanings are those of NVIDIA's numbers that concern a job (NVIDIA, "XID Errors"): what it is, how grave, and what NVIDIA says to do.
var xidMeanings = map[int]struct {
	status Status
	means  string
	fix    string
}{
	13:  {OK, "a program's kernel went wrong", ""},
	69:  {OK, "a program's kernel went wrong", ""},
	137: {OK, "a program's access over NVLink was refused", ""},
	31:  {OK, "a program touched memory that is not its own", ""},
	43:  {OK, "a program's channel was reset", ""},
	45:  {OK, "a program was removed, usually as a consequence", ""},
	38:  {Warn, "driver firmware error", resetGPU},
	48:  {Fault, "uncorrectable memory error", resetGPU},
	61:  {Fault, "internal microcontroller breakpoint", resetGPU},
	62:  {Fault, "internal microcontroller halted", resetGPU},
	63:  {Warn, "a memory row or page is to be replaced at the next reset", resetGPU},
	64:  {Fault, "a memory row or page could not be replaced", replaceGPU},
	74:  {Fault, "NVLink error", checkLinks},
	79:  {Fault, "the GPU has fallen off the bus", "drain the node and reboot it; if it comes again, reseat or replace the GPU"},
	92:  {Warn, "high rate of corrected memory errors", resetGPU},
	94:  {Warn, "uncorrectable memory error that hit one program only", resetGPU},
	95:  {Fault, "uncorrectable memory error that was not contained", resetGPU},
	109: {Warn, "a context switch timed out", resetGPU},
	119: {Fault, "the GPU's system processor does not answer", resetGPU},
	120: {Fault, "the GPU's system processor stopped", resetGPU},
	121: {Warn, "C2C link error", resetGPU},
	136: {Warn, "NVLink training failed", checkLinks},
	140: {Fault, "uncorrectable memory error", resetGPU},
	143: {Fault, "the GPU could not be initialised", resetGPU},
	144: {Fault, "NVLink error", checkLinks}, 145: {Fault, "NVLink error", checkLinks}, 146: {Fault, "NVLink error", checkLinks}, 147: {Fault, "NVLink error", checkLinks},
	148: {Fault, "NVLink error", checkLinks}, 149: {Fault, "NVLink error", checkLinks}, 150: {Fault, "NVLink error", checkLinks},
	154: {Fault, "the driver asks for a recovery", "do what the line asks for: reset the GPU, or drain and reboot the node"},
}

const (
	resetGPU   = "drain the node, then nvidia-smi --gpu-reset -i GPU (on NVSwitch machines all GPUs together), or reboot"
	replaceGPU = "take the GPU out of service and have it replaced"
	checkLinks = "nvidia-smi nvlink -s and nvidia-smi nvlink -e; reset all GPUs, then the fabric manager; if it comes again, have GPU or board checked"
)

// recoveryXid tells that what the driver asks for has changed, "… from 0x0 (None) to 0x1 (GPU Reset Required)": the last one counts.
const recoveryXid = 154

// settled drops messages of recovery that a later one replaced.
func settled(list []xid) []xid {
	last := map[string]int{}
	for i, x := range list {
		if x.code == recoveryXid && !x.isSXid {
			last[x.bus] = i
		}
	}
	var out []xid
	for i, x := range list {
		if x.code != recoveryXid || x.isSXid || last[x.bus] == i {
			out = append(out, x)
		}
	}
	return out
}

func xidMeaning(x xid) (Status, string, string) {
	if x.isSXid {
		if strings.Contains(x.text, "Non-fatal") || !strings.Contains(x.text, "Fatal") {
			return Warn, "NVSwitch, not fatal", checkLinks
		}
		return Fault, "NVSwitch, fatal", checkLinks
	}
	if x.code == recoveryXid && strings.Contains(x.text, "to 0x0 ") {
		return OK, "the driver asks for no recovery any more", ""
	}
	if k, ok := xidMeanings[x.code]; ok {
		return k.status, k.means, k.fix
	}
	return Warn, "see NVIDIA's list of Xid numbers", ""
}
