package nsexec

import (
	"context"
	"os/exec"
	"testing"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/policy/seccomp"
)

// benchFilter is a filter of the default profile's size: it is run on every
// system call of the Worker and copied at its load.
func benchSpec() *Spec {
	s := newSpec("/bin/true")
	f, err := seccomp.Filter(policy.SandboxPolicy{}.Normalize())
	if err != nil {
		panic(err)
	}
	s.Filter = f
	return s
}

func launchAndWait(b *testing.B, s *Spec) {
	p, err := Launch(context.Background(), s)
	if err != nil {
		b.Error(err)
		return
	}
	if o, err := p.Wait(context.Background()); err != nil || o.ExitCode != 0 {
		b.Errorf("%+v %v", o, err)
	}
}

func bwrap() *exec.Cmd {
	return exec.Command("bwrap", "--unshare-all", "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib",
		"--symlink", "usr/lib64", "/lib64", "--symlink", "usr/sbin", "/sbin", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "/bin/true")
}

// BenchmarkLaunch compares a launch, from request to reaped, with a whole run
// of bubblewrap with the same binds.
func BenchmarkLaunch(b *testing.B) {
	s := benchSpec()
	b.Run("yoi", func(b *testing.B) {
		for b.Loop() {
			launchAndWait(b, s)
		}
	})
	b.Run("bwrap", func(b *testing.B) {
		for b.Loop() {
			if err := bwrap().Run(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("yoi-8", func(b *testing.B) {
		b.SetParallelism((8 + numCPU() - 1) / numCPU())
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				launchAndWait(b, s)
			}
		})
	})
	b.Run("bwrap-8", func(b *testing.B) {
		b.SetParallelism((8 + numCPU() - 1) / numCPU())
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if err := bwrap().Run(); err != nil {
					b.Error(err)
				}
			}
		})
	})
}
