/* streams.cuh - streams as queues of work, and the calling thread's device and last error.
 *
 * CUDA_ON_CPU_STREAMS says when work runs. lazy, the default: only when something waits for it, so
 * that a missing synchronisation gives a wrong result each time. eager: as it is queued. random:
 * in between. Whoever waits runs the work himself. Work that nothing has waited for in a while is
 * run by a thread of the stand-in, since a host may wait by other means (a host function that
 * signals it). The same thread ends the process when a kernel takes longer than
 * CUDA_ON_CPU_TIMEOUT seconds: a thread that spins on another one's write never ends here.
 *
 * The default stream and streams that synchronise with it are refused.
 */
#ifndef RUBATO_TESTS_STREAMS_CUH
#define RUBATO_TESTS_STREAMS_CUH

#include <cuda_runtime.h>
#include <functional>

namespace cuda_on_cpu {

enum { DEVICES_MAX = 32 };

/* Queues the work. on_device: it runs in a device_section(). */
cudaError_t enqueue_work(cudaStream_t stream, bool on_device, std::function<void()> work);

/* Runs all that is queued on the device's streams, or waits for whom already runs it. */
void streams_drain_device(int device);

/* The device that a stream belongs to. */
int stream_device(cudaStream_t stream);

/* cudaSetDevice() of this thread, and how many there are (CUDA_ON_CPU_DEVICES). */
int device_current(void);
int device_count(void);

/* Keeps what cudaGetLastError() of this thread answers; returns its argument. */
cudaError_t note_error(cudaError_t error);

} // namespace cuda_on_cpu

#endif
