// Command guest is what runs in a virtual machine of tests/internal/vm: its first
// process, which lays out the file system and becomes systemd(1), and the service that
// runs commands for the test.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"yoi.dev/yoi-runtime/tests/internal/vm/agent"
)

func main() {
	err := serve
	if os.Getpid() == 1 {
		err = boot
	}
	if err := err(); err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
		os.Exit(1) // of the first process: a panic, which ends the machine
	}
}

// serve finds the port by its name: without udev(7) there is no link of it.
func serve() error {
	names, err := filepath.Glob("/sys/class/virtio-ports/*/name")
	if err != nil {
		return err
	}
	for _, n := range names {
		b, err := os.ReadFile(n)
		if err != nil || strings.TrimSpace(string(b)) != agent.Port {
			continue
		}
		f, err := os.OpenFile(filepath.Join("/dev", filepath.Base(filepath.Dir(n))), os.O_RDWR, 0)
		if err != nil {
			return err
		}
		return agent.Serve(f)
	}
	return fmt.Errorf("no port %s among %q", agent.Port, names)
}
