package cow

import "log/slog"

// RemoveOptions tunes RemoveTree. The zero value is right for most callers.
type RemoveOptions struct {
	// KeepTop empties the directory but leaves it.
	KeepTop bool
	// Log receives what could not be removed and why. nil is silent.
	Log *slog.Logger
}
