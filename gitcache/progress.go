package gitcache

import (
	"strconv"
	"strings"

	"yoi.dev/yoi-runtime/policy"
)

// progressLine returns a stderr callback that turns git's progress into Progress.
func (c *Cache) progressLine(repo policy.RepositoryID) func(string) {
	if c.opts.Progress == nil {
		return nil
	}
	return func(line string) {
		if p, ok := parseProgress(line); ok {
			p.Repo = repo
			c.opts.Progress(p)
		}
	}
}

// parseProgress reads "Receiving objects:  12% (3/25), 1.20 MiB | 2.30 MiB/s"
// and "Enumerating objects: 18, done.", with or without "remote: " before it.
func parseProgress(line string) (Progress, bool) {
	line = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "remote:"))
	phase, rest, ok := strings.Cut(line, ": ")
	if !ok || phase == "" || len(phase) > 64 || phase[0] < 'A' || phase[0] > 'Z' {
		return Progress{}, false
	}
	p := Progress{Phase: phase}
	counts, tail, _ := strings.Cut(strings.TrimSpace(rest), ",")
	if pct, frac, ok := strings.Cut(counts, "% ("); ok {
		done, total, ok := strings.Cut(strings.TrimSuffix(frac, ")"), "/")
		if _, err := strconv.Atoi(strings.TrimSpace(pct)); err != nil || !ok {
			return Progress{}, false
		}
		var err1, err2 error
		p.Done, err1 = strconv.ParseInt(done, 10, 64)
		p.Total, err2 = strconv.ParseInt(total, 10, 64)
		if err1 != nil || err2 != nil {
			return Progress{}, false
		}
	} else {
		n, err := strconv.ParseInt(counts, 10, 64)
		if err != nil {
			return Progress{}, false
		}
		p.Done = n
	}
	p.Bytes = parseSize(tail)
	return p, true
}

// parseSize reads the " 1.20 MiB" of a progress line; 0 where there is none.
func parseSize(s string) int64 {
	f := strings.Fields(strings.SplitN(s, "|", 2)[0])
	if len(f) < 2 {
		return 0
	}
	n, err := strconv.ParseFloat(f[0], 64)
	if err != nil || n < 0 {
		return 0
	}
	switch strings.TrimSuffix(f[1], ",") {
	case "bytes":
	case "KiB":
		n *= 1 << 10
	case "MiB":
		n *= 1 << 20
	case "GiB":
		n *= 1 << 30
	default:
		return 0
	}
	return int64(n)
}
