//go:build !race

package csrc_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/commprobe/commprobe/internal/bindtest"
)

const nvmlAPI = 13 // what the header calls itself

// checkNVML returns where header differs from NVIDIA's nvml.h in the folder.
func checkNVML(header, folder string) []string {
	p := abiPackage{name: bindtest.NVMLModule, version: bindtest.NVMLVersion, code: nvmlAPI}
	return checkHeader(header, "testdata/abi_nvml.c", folder, p, []string{"-isystem", folder, "-I", "."})
}

// TestABINVML compares nvml_abi.h with NVIDIA's header, and wants each of the mistakes below found.
func TestABINVML(t *testing.T) {
	if _, err := exec.LookPath("gcc"); err != nil {
		unavailable(t, err)
	}
	folder, err := bindtest.NVMLHeader(t)
	if err != nil {
		unavailable(t, err)
	}
	report(t, checkNVML("nvml_abi.h", folder))
	for _, m := range []struct{ what, old, new, want string }{
		{"value", "CP_NVML_TOPOLOGY_NODE = 40,", "CP_NVML_TOPOLOGY_NODE = 41,", "CP_NVML_TOPOLOGY_NODE differs"},
		{"code", "CP_NVML_NOT_SUPPORTED = 3,", "CP_NVML_NOT_SUPPORTED = 4,", "CP_NVML_NOT_SUPPORTED differs"},
		{"limit", "CP_NVML_MAX_LINKS = 36,", "CP_NVML_MAX_LINKS = 18,", "CP_NVML_MAX_LINKS differs"},
		{"field id", "CP_NVML_FIELD_RECOVERY_ACTION = 230,", "CP_NVML_FIELD_RECOVERY_ACTION = 226,", "CP_NVML_FIELD_RECOVERY_ACTION differs"},
		{"member order", "unsigned gpu_instance;\n  unsigned compute_instance;", "unsigned compute_instance;\n  unsigned gpu_instance;", "cp_nvml_process.gpu_instance: offset differs"},
		{"member size", "  long long latency;", "  int latency;", "cp_nvml_field.latency: size differs"},
		{"member kind", "  double d;", "  long long d;", "cp_nvml_value.d: kind differs"},
		{"member added", "  unsigned health;\n", "  unsigned health;\n  unsigned more;\n", "nvmlGpuFabricInfo_v2_t: size differs"},
		{"version word", "2u << 24", "3u << 24", "CP_NVML_FABRIC_V2 differs"},
		{"parameter size", "int since, unsigned long long *n)", "int since, unsigned *n)", "nvmlDeviceGetTotalEccErrors: ours is"},
		{"parameter count", "X(nvmlDeviceGetMigMode, (cp_nvml_device d, unsigned *now, unsigned *pending), (d, now, pending))", "X(nvmlDeviceGetMigMode, (cp_nvml_device d, unsigned *now), (d, now))", "nvmlDeviceGetMigMode: ours is"},
		{"parameter order", "(cp_nvml_device d, int kind, int since, unsigned long long *n), (d, kind,", "(int kind, cp_nvml_device d, int since, unsigned long long *n), (kind, d,", "nvmlDeviceGetTotalEccErrors: ours is"},
		{"struct of another version", "(cp_nvml_device d, unsigned *n, cp_nvml_process_v1 *p)", "(cp_nvml_device d, unsigned *n, cp_nvml_process *p)", "nvmlDeviceGetComputeRunningProcesses: ours is"},
		{"name", "X(nvmlDeviceGetUUID,", "X(nvmlDeviceGetUuid,", "nvmlDeviceGetUuid: version 13 lacks it"},
	} {
		t.Run("wrong "+m.what, func(t *testing.T) {
			t.Parallel()
			text := readText(t, "nvml_abi.h")
			if n := strings.Count(text, m.old); n != 1 {
				t.Fatalf("nvml_abi.h has %q %d times, want once: adapt the mutation", m.old, n)
			}
			header := filepath.Join(t.TempDir(), "nvml_abi.h")
			if err := os.WriteFile(header, []byte(strings.Replace(text, m.old, m.new, 1)), 0o644); err != nil {
				t.Fatal(err)
			}
			if problems := checkNVML(header, folder); !strings.Contains(strings.Join(problems, "\n"), m.want) {
				t.Errorf("want a problem with %q, got %q", m.want, problems)
			}
		})
	}
}

// TestABINVMLCovered finds a constant or a member of a struct that nothing compares with NVIDIA's header.
func TestABINVMLCovered(t *testing.T) {
	header, checks := readText(t, "nvml_abi.h"), readText(t, "testdata/abi_nvml.c")
	constants := regexp.MustCompile(`(?m)^\s*(CP_NVML_\w+) = |^#define (CP_NVML_FABRIC_\w+) `).FindAllStringSubmatch(header, -1)
	if len(constants) < 35 {
		t.Fatalf("found %d constants in nvml_abi.h: the pattern no longer fits", len(constants))
	}
	for _, m := range constants {
		if name := m[1] + m[2]; !strings.Contains(checks, "VALUE("+name+", ") {
			t.Errorf("%s: not compared with NVIDIA's value", name)
		}
	}
	code := regexp.MustCompile(`//.*`).ReplaceAllString(header, "")
	structs := regexp.MustCompile(`(?ms)^typedef (?:struct|union) \{(.*?)^\} (cp_nvml_\w+);`).FindAllStringSubmatch(code, -1)
	members := 0
	for _, s := range structs {
		for _, m := range regexp.MustCompile(`(?m)(\w+)(?:\[\w+\])?;`).FindAllStringSubmatch(s[1], -1) {
			members++
			if !strings.Contains(checks, "FIELD("+s[2]+", "+m[1]+", ") {
				t.Errorf("%s.%s: not compared with NVIDIA's", s[2], m[1])
			}
		}
	}
	if len(structs) < 9 || members < 40 {
		t.Errorf("found %d structs with %d members in nvml_abi.h: the patterns no longer fit", len(structs), members)
	}
}
