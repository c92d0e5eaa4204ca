package runtime

import (
	"cmp"

	"yoi.dev/yoi-runtime/ledger/registry"
	"yoi.dev/yoi-runtime/policy"
)

// JournalConfig says what of Workers' output goes to the system's journal too, where
// there is one.
type JournalConfig struct {
	// WorkerOutput is unless_secret, always or never.
	WorkerOutput string `toml:"worker_output"`
	// WorkerOutputMax and WorkerOutputRate bound each of a Worker's two streams: as a
	// whole, and in half a minute.
	WorkerOutputMax  string `toml:"worker_output_max"`
	WorkerOutputRate string `toml:"worker_output_rate"`
}

// An operator who asks the journal for a Worker expects its words there, as they are
// for every service; the bounds keep a hostile one from pushing everybody else's
// entries out. A Worker can print a secret that it was given, and more people read the
// journal than the Runtime root, so its output stays there unless the operator says
// otherwise.
const (
	outputUnlessSecret = "unless_secret"
	outputAlways       = "always"
	outputNever        = "never"

	defaultOutputMax  = 16 << 20
	defaultOutputRate = 1 << 20
	leastOutputRate   = 64 << 10 // a few of the longest lines
)

func (j JournalConfig) validate() error {
	const op = "runtime.config"
	switch j.WorkerOutput {
	case "", outputUnlessSecret, outputAlways, outputNever:
	default:
		return policy.Errorf(policy.CodeConfigInvalid, op, "journal.worker_output: %q is not unless_secret, always or never", policy.Printable(j.WorkerOutput))
	}
	for name, s := range map[string]string{"worker_output_max": j.WorkerOutputMax, "worker_output_rate": j.WorkerOutputRate} {
		if n, err := policy.ParseSize(s); s != "" && (err != nil || n > 1<<40 || n < leastOutputRate) {
			return policy.Errorf(policy.CodeConfigInvalid, op, "journal.%s: %q is not a size of 64K or more, such as 1M", name, policy.Printable(s))
		}
	}
	return nil
}

func (c Config) outputMax() int64  { return outputSize(c.Journal.WorkerOutputMax, defaultOutputMax) }
func (c Config) outputRate() int64 { return outputSize(c.Journal.WorkerOutputRate, defaultOutputRate) }

// outputSize reads a size that validate has seen.
func outputSize(s string, usual int64) int64 {
	n, err := policy.ParseSize(s)
	if s == "" || err != nil {
		return usual
	}
	return int64(n)
}

// outputRefused says why a Worker's output is not to be copied, "" if it is. What a
// terminal shows is no lines: programs draw on it.
func (c Config) outputRefused(w registry.Worker) string {
	how := cmp.Or(c.Journal.WorkerOutput, outputUnlessSecret)
	if how == outputNever {
		return "configuration"
	}
	if w.Terminal {
		return "terminal"
	}
	for _, s := range w.Secrets {
		if how == outputUnlessSecret && s.As != policy.SecretHTTPHeader { // such a value stays with the proxy
			return "secrets"
		}
	}
	return ""
}
