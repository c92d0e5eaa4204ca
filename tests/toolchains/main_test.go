package toolchains

import (
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }
