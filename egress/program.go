package egress

import (
	"os"
	"path/filepath"
)

// Program finds yoi-egress: $YOI_EGRESS, or beside the running program.
func Program() string {
	if p := os.Getenv("YOI_EGRESS"); p != "" {
		return p
	}
	self, err := os.Executable()
	if err != nil {
		return "yoi-egress"
	}
	return filepath.Join(filepath.Dir(self), "yoi-egress")
}
