package ibverbs

// SetMemlock replaces the reading of the limit of locked memory and returns what undoes it.
func SetMemlock(f func() (uint64, error)) (undo func()) {
	old := memlock
	memlock = f
	return func() { memlock = old }
}

// SetSysRoot replaces the folder of the kernel's view and returns what undoes it.
func SetSysRoot(dir string) (undo func()) {
	old := sysRoot
	sysRoot = dir
	return func() { sysRoot = old }
}

// Last numbers of the interface's lists, from the header.
var (
	LastStatus, LastEvent = len(wcTexts) - 1, len(eventKinds) - 1
	HeaderStatus          = headerStatus
	HeaderEvent           = headerEvent
	VersionIn             = versionIn
	SysRate               = sysRate
)
