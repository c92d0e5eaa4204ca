package nsexec

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
)

// A namespace made in advance is to the Worker what one made by the launch is:
// its own, with nothing but loopback, and not its to configure.
func TestNetworkMadeInAdvance(t *testing.T) {
	testenv.Privileged(t)
	const script = `readlink /proc/self/ns/net; cat /proc/net/dev | tail -n +3 | cut -d: -f1
python3 -c '
import socket
s = socket.create_server(("127.0.0.1", 0)); c = socket.create_connection(s.getsockname()); print("loopback")'
unshare -r ip link set lo down 2>&1`
	home, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{home: true}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			network, err := NewNetwork()
			if err != nil {
				t.Error(err)
				return
			}
			defer network.Close()
			s := newSpec("/bin/sh", "-c", script)
			s.Network = network
			out, o, err := tryRun(t, s)
			if err != nil {
				t.Error(err)
				return
			}
			lines := strings.Fields(out)
			if len(lines) < 4 || lines[1] != "lo" || lines[2] != "loopback" || o.ExitCode == 0 {
				t.Errorf("%q %+v", out, o)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if seen[lines[0]] {
				t.Errorf("%s was somebody's already", lines[0])
			}
			seen[lines[0]] = true
		})
	}
	wg.Wait()
	threads, err := filepath.Glob("/proc/self/task/*/ns/net")
	if err != nil || len(threads) == 0 {
		t.Fatal(threads, err)
	}
	for _, l := range threads {
		// A thread may have ended meanwhile.
		if at, err := os.Readlink(l); err == nil && at != home {
			t.Errorf("%s stayed in %s", l, at)
		}
	}
	s := newSpec("true")
	s.HostNetwork, s.Network = true, os.Stdin
	if _, _, err := tryRun(t, s); err == nil {
		t.Error("two networks were accepted")
	}
}
