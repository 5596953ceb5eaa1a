package doctor

import (
	"strings"
	"testing"
)

// Healthy machines give no warning and no fault, and everything that they have is looked at.
func TestHealthy(t *testing.T) {
	t.Parallel()
	for name := range fixtures {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := Run(healthy(t, name))
			var text strings.Builder
			if err := r.WriteText(&text, TextOptions{}); err != nil {
				t.Fatal(err)
			}
			if r.Count(Fault)+r.Count(Warn) > 0 || len(r.Warnings) > 0 {
				t.Errorf("\n%s", &text)
			}
			t.Logf("\n%s", &text)
		})
	}
}
