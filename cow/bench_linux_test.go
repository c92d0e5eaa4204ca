package cow

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
)

// plantTree makes n files of log-normal size around 8 KiB in n/12 directories,
// which is about what source repositories look like.
func plantTree(tb testing.TB, dir string, n int) {
	tb.Helper()
	rnd := rand.New(rand.NewPCG(1, uint64(n)))
	noise := make([]byte, 2<<20)
	for i := range noise {
		noise[i] = byte(rnd.Uint32())
	}
	dirs := []string{dir}
	for i := range n / 12 {
		d := filepath.Join(dirs[rnd.IntN(len(dirs))], "d"+strconv.Itoa(i))
		if err := os.Mkdir(d, 0o755); err != nil {
			tb.Fatal(err)
		}
		dirs = append(dirs, d)
	}
	old := time.Unix(1_600_000_000, 123456789)
	for i := range n {
		size := min(1<<20, int(8192*math.Exp(rnd.NormFloat64()*1.2)))
		off := rnd.IntN(len(noise) - size)
		name := filepath.Join(dirs[rnd.IntN(len(dirs))], fmt.Sprintf("f%d.go", i))
		if err := os.WriteFile(name, noise[off:off+size], 0o644); err != nil {
			tb.Fatal(err)
		}
		if err := os.Chtimes(name, old, old); err != nil {
			tb.Fatal(err)
		}
	}
}

func median(ds []time.Duration) time.Duration {
	slices.Sort(ds)
	return ds[len(ds)/2]
}

func syncFS(tb testing.TB, dir *os.File) {
	tb.Helper()
	if err := unix.Syncfs(int(dir.Fd())); err != nil {
		tb.Fatal(err)
	}
}

// BenchmarkReflinkAgainstCp measures both in turn on one xfs and reports the
// ratio of the medians. The caller's process start is in cp's time and not in
// ours: so it is for the user.
//
//	go test -run - -bench ReflinkAgainstCp -benchtime 5x ./cow
func BenchmarkReflinkAgainstCp(b *testing.B) {
	for _, kind := range []string{"xfs", "btrfs"} {
		for _, n := range []int{10_000, 100_000} {
			for _, workers := range []int{0, 1} {
				b.Run(fmt.Sprintf("%s/%d/workers=%d", kind, n, workers), func(b *testing.B) { benchReflink(b, kind, n, workers) })
			}
		}
	}
}

func benchReflink(b *testing.B, kind string, n, workers int) {
	fs := testenv.FSWith(b, kind, 8192, testenv.FSOptions{OnDisk: os.Getenv("BENCH_DISK") != ""})
	if err := os.Mkdir(filepath.Join(fs, "s"), 0o755); err != nil {
		b.Fatal(err)
	}
	plantTree(b, filepath.Join(fs, "s"), n)
	parent, err := os.Open(fs)
	if err != nil {
		b.Fatal(err)
	}
	defer parent.Close()
	src, err := os.Open(filepath.Join(fs, "s"))
	if err != nil {
		b.Fatal(err)
	}
	defer src.Close()
	var cp, own []time.Duration
	remove := func(name string) {
		if err := RemoveTree(context.Background(), parent, name, RemoveOptions{}); err != nil {
			b.Fatal(err)
		}
		syncFS(b, parent)
	}
	syncFS(b, parent)
	for b.Loop() {
		start := time.Now()
		if out, err := exec.Command("cp", "-a", "--reflink=always", filepath.Join(fs, "s"), filepath.Join(fs, "c")).CombinedOutput(); err != nil {
			b.Fatalf("%v %s", err, out)
		}
		cp = append(cp, time.Since(start))
		remove("c")
		start = time.Now()
		res, err := ByName(policy.StrategyReflink).Materialize(context.Background(), Request{Source: src, TargetParent: parent, TargetName: "t", Parallel: workers})
		if err != nil {
			b.Fatal(err)
		}
		own = append(own, time.Since(start))
		if res.Cloned < int64(n)*9/10 {
			b.Fatalf("%+v", res)
		}
		remove("t")
	}
	b.ReportMetric(float64(median(cp).Microseconds())/1000, "cp-ms")
	b.ReportMetric(float64(median(own).Microseconds())/1000, "own-ms")
	b.ReportMetric(float64(median(own))/float64(median(cp)), "ratio")
}
