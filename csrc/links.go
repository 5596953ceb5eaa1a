package csrc

import _ "embed"

//go:generate clang-16 -x cuda --cuda-device-only --cuda-gpu-arch=sm_70 -nocudainc -nocudalib -O3 -S links.cu -o links.ptx

//go:embed links.ptx
var linksPTX string

// LinksPTX returns the kernels cp_link_copy and cp_link_ping as PTX for sm_70 and later, with the trailing NUL that cuModuleLoadData wants; links.h has
// their arguments.
func LinksPTX() []byte {
	return append([]byte(linksPTX), 0)
}

// LinkPinged is what cp_link_ping leaves, in the layout of C's cp_link_pinged.
type LinkPinged struct {
	NS     uint64 // of the timed rounds, by the clock of the device
	Wrong  uint64 // words with wrong data
	Rounds uint64 // completed, warm-up included; fewer than asked: the fuse ended it
}
