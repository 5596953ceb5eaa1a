package doctor

import (
	"errors"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/commprobe/commprobe/internal/nvml"
)

var driverChecks = []check{
	{"driver-loaded", "NVIDIA kernel module", "without it there is no CUDA", "NVIDIA driver installation guide", driverLoaded},
	{"driver-mix", "driver and its libraries are of one version", "a library of another version than the loaded module ends every CUDA and NVML call with an error", "nvmlInit: driver/library version mismatch", driverMix},
	{"driver-nvml", "NVML answers", "NCCL itself loads NVML and gives up without it", "NCCL src/misc/nvmlwrap.cc", driverNVML},
	{"driver-cuda", "CUDA toolkit fits the driver", "a toolkit of a newer major version does not run on an older driver, unless the compatibility package is there", "CUDA compatibility guide", driverCUDA},
	{"driver-nccl", "one NCCL", "which of several libnccl.so.2 is loaded depends on the search path; ranks with different ones hang or fail at the start", "NCCL installation guide", driverNCCL},
}

var versionPattern = regexp.MustCompile(`\b(\d{3}\.\d+(?:\.\d+)?)\b`)

// moduleVersion is that of the loaded kernel module, and whether it is the open one.
func (m *machine) moduleVersion() (version string, open bool) {
	line, _, _ := strings.Cut(m.text("proc/driver/nvidia/version"), "\n")
	if v := versionPattern.FindString(line); v != "" {
		return v, strings.Contains(line, "Open Kernel Module")
	}
	return m.text("sys/module/nvidia/version"), false
}

func driverLoaded(m *machine, v *verdict) {
	version, open := m.moduleVersion()
	gpus := m.gpuDevices()
	kind := "proprietary"
	if open {
		kind = "open"
	}
	switch {
	case version != "":
		v.ok("%s (%s kernel module)", version, kind)
		v.fact("driver", version)
		v.fact("driver module", kind)
	case gpus == 0:
		v.skip("no NVIDIA GPU on the PCI bus")
	case m.container() != "":
		v.warn("start the container with GPUs: docker run --gpus all …, or a resource nvidia.com/gpu in Kubernetes", "the host has %s, but this container has no driver", count(gpus, "NVIDIA GPU"))
	default:
		v.fault("modprobe nvidia; dmesg | grep -i nvrm says why it does not load", "%s on the PCI bus, and the kernel module is not loaded", count(gpus, "NVIDIA GPU"))
	}
}

// libraryDirs are where the loader finds libraries by default.
var libraryDirs = []string{"usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib", "usr/local/nvidia/lib64", "usr/local/lib", "lib/x86_64-linux-gnu", "lib64", "run/opengl-driver/lib"}

// versioned lists the files of a library, by real path, with the version in their names ("" where the name has none).
func (m *machine) versioned(dirs []string, name string) map[string]string {
	out := map[string]string{}
	for _, dir := range dirs {
		for _, f := range m.glob(dir + "/" + name + "*") {
			real, err := filepath.EvalSymlinks(m.at(f))
			if err != nil {
				continue // a link to nowhere
			}
			rel, err := filepath.Rel(m.at(""), real)
			if err != nil || strings.HasPrefix(rel, "..") {
				rel = f
			}
			version := strings.TrimPrefix(strings.TrimPrefix(path.Base(filepath.ToSlash(rel)), name), ".")
			out["/"+filepath.ToSlash(rel)] = version
		}
	}
	return out
}

func driverMix(m *machine, v *verdict) {
	module, _ := m.moduleVersion()
	if module == "" {
		v.skip("no driver loaded")
		return
	}
	if errors.Is(m.NVMLErr, nvml.ErrMismatch) {
		v.fault("reboot, or unload and reload the modules: systemctl stop nvidia-persistenced nvidia-fabricmanager; rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia; modprobe nvidia", "NVML: %v", m.NVMLErr)
	}
	seen := 0
	for _, lib := range []string{"libcuda.so", "libnvidia-ml.so"} {
		versions := m.versioned(libraryDirs, lib)
		var other []string
		fits := false
		for file, version := range versions {
			switch {
			case version == module:
				fits = true
				seen++
			case versionPattern.MatchString(version):
				other = append(other, file)
				seen++
			}
		}
		slices.Sort(other)
		if len(other) == 0 {
			continue
		}
		if fits {
			v.warn("remove the packages of the version that is not loaded", "beside the fitting file there is %s, and the module is %s", shorten(other, 4), module)
			continue
		}
		v.fault("install the user libraries of "+module+", or reboot into the module that fits them (a container gets them from the NVIDIA runtime: bake none into the image)",
			"the module is %s, but the library is %s", module, shorten(other, 4))
	}
	if !v.bad() {
		if seen == 0 {
			v.unknown("", "module %s; no libcuda or libnvidia-ml was found in the usual folders", module)
			return
		}
		v.ok("module and libraries are %s", module)
	}
}

func driverNVML(m *machine, v *verdict) {
	module, _ := m.moduleVersion()
	err := m.NVMLErr
	switch {
	case m.NVML != nil:
		v.ok("%s", count(len(m.NVML.GPUs), "GPU"))
		v.fact("gpus", strconv.Itoa(len(m.NVML.GPUs)))
	case module == "":
		v.skip("no driver loaded")
	case err == nil:
		v.unknown("run it on the machine itself", "nobody asked NVML")
	case errors.Is(err, nvml.ErrMismatch):
		v.unknown("see driver-mix", "%v", err)
	case errors.Is(err, nvml.ErrNoAnswer):
		v.warn("run it again; if it is only the first time that is slow: systemctl enable --now nvidia-persistenced, or nvidia-smi -pm 1", "%v; without persistence mode the driver starts all GPUs anew, which may take as long", err)
	default:
		v.fault("nvidia-smi shows the same error; in a container NVIDIA_DRIVER_CAPABILITIES must contain compute,utility", "%v", err)
	}
}

func driverCUDA(m *machine, v *verdict) {
	driver := ""
	if m.NVML != nil && m.NVML.CUDADriver != nil {
		driver = *m.NVML.CUDADriver
	}
	toolkit := toolkitVersion(m)
	v.fact("cuda driver", driver)
	v.fact("cuda toolkit", toolkit)
	switch {
	case toolkit == "":
		v.skip("no CUDA toolkit in /usr/local/cuda")
	case driver == "":
		v.unknown("", "toolkit %s; what the driver serves is not known", toolkit)
	case major(toolkit) <= major(driver):
		v.ok("toolkit %s, driver serves %s", toolkit, driver)
	case len(m.glob("usr/local/cuda/compat/libcuda.so*")) > 0:
		v.ok("toolkit %s by its compatibility library, driver serves %s", toolkit, driver)
	default:
		v.warn("update the driver, or install cuda-compat-"+strings.ReplaceAll(toolkit, ".", "-"), "toolkit %s, but the driver serves only %s", toolkit, driver)
	}
}

var toolkitPattern = regexp.MustCompile(`"cuda"\s*:\s*\{[^}]*"version"\s*:\s*"(\d+\.\d+)`)

func toolkitVersion(m *machine) string {
	if f := toolkitPattern.FindStringSubmatch(m.text("usr/local/cuda/version.json")); f != nil {
		return f[1]
	}
	return ""
}

func major(version string) int {
	n, _ := strconv.Atoi(strings.SplitN(version, ".", 2)[0])
	return n
}

// pythonDirs are where pip and conda put NVIDIA's libraries.
var pythonDirs = []string{"usr/lib/python3*/*-packages", "usr/local/lib/python3*/*-packages", "opt/conda/lib/python3*/site-packages", "opt/*/lib/python3*/site-packages", "root/.local/lib/python3*/site-packages"}

// ncclCopies finds NCCL's files and their versions; "" for a version that neither the name nor the file tells.
func (m *machine) ncclCopies() map[string]string {
	dirs := slices.Clone(libraryDirs)
	for dir := range strings.SplitSeq(m.env["LD_LIBRARY_PATH"], ":") {
		if strings.HasPrefix(dir, "/") {
			dirs = append(dirs, strings.TrimPrefix(path.Clean(dir), "/"))
		}
	}
	dirs = append(dirs, "usr/local/cuda/lib64", "opt/hpcx/nccl/lib")
	found := m.versioned(dirs, "libnccl.so")
	packages := slices.Clone(pythonDirs)
	for _, name := range []string{"VIRTUAL_ENV", "CONDA_PREFIX"} {
		if p := m.env[name]; strings.HasPrefix(p, "/") {
			packages = append(packages, strings.TrimPrefix(path.Clean(p), "/")+"/lib/python3*/site-packages")
		}
	}
	for dir := range strings.SplitSeq(m.env["PATH"], ":") { // a virtual environment that was entered
		if home, ok := strings.CutSuffix(path.Clean(dir), "/bin"); ok && len(home) > 1 && home[0] == '/' && home != "/usr" && home != "/usr/local" {
			packages = append(packages, home[1:]+"/lib/python3*/site-packages")
		}
	}
	for _, pattern := range packages {
		for _, lib := range m.glob(pattern + "/nvidia/nccl/lib/libnccl.so.2") {
			site := strings.TrimSuffix(lib, "/nvidia/nccl/lib/libnccl.so.2")
			version := ""
			for _, info := range m.glob(site + "/nvidia_nccl_cu*-*.dist-info") {
				_, version, _ = strings.Cut(strings.TrimSuffix(path.Base(info), ".dist-info"), "-")
			}
			found["/"+lib] = version
		}
	}
	for file, version := range found {
		if version == "" || version == "2" { // a plain copy named libnccl.so.2
			found[file] = m.ncclVersion(file)
		}
	}
	return found
}

func driverNCCL(m *machine, v *verdict) {
	copies := m.ncclCopies()
	if len(copies) == 0 {
		v.skip("no libnccl.so in the usual folders")
		return
	}
	versions := map[string][]string{}
	for file, version := range copies {
		if version == "" {
			version = "unknown version"
		}
		versions[version] = append(versions[version], file)
		slices.Sort(versions[version])
	}
	list := map[string]string{}
	for version, files := range versions {
		for _, f := range files {
			list[f] = version
		}
	}
	v.fact("nccl", strings.Join(mostFrequent(versions), ", "))
	if len(versions) > 1 {
		v.warn("keep one, or say which: LD_LIBRARY_PATH, or LD_PRELOAD=/path/libnccl.so.2; NCCL_DEBUG=VERSION shows what a job loads", "%s", groups(list))
		return
	}
	v.ok("%s", groups(list))
}
