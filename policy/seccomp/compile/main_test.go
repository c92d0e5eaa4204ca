//go:build cgo

package compile

import (
	"os"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
)

func TestMain(m *testing.M) {
	// The confined child is this binary too; see confine_test.go.
	if mode := os.Getenv(envChild); mode != "" {
		os.Exit(child(mode))
	}
	testenv.Main(m)
}
