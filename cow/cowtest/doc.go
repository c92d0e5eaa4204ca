// Package cowtest holds every materialization strategy to one suite.
//
// It exists because "files arrive exactly" is one promise that five mechanisms
// keep by different means: what a copy has to do attribute by attribute, a
// snapshot gets for nothing and an overlay shows through a mount. The suite
// makes a tree of awkward files, materializes it, and compares what a Worker
// would see, entry by entry, with code that shares nothing with package cow.
//
// Nothing but tests may import it.
package cowtest
