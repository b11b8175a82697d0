// Package quantile has medians and other quantiles of values, interpolated linearly between
// neighbours: type 7 of Hyndman and Fan, as the quantile of R and numpy.
package quantile
