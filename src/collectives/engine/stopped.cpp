#include "collectives/engine/stopped.hpp"

namespace tokenyard::collectives {

std::exception_ptr with_sentence(const std::exception_ptr& cause, const std::string& sentence) {
  try {
    std::rethrow_exception(cause);
  } catch (const PeerTimeout& error) {
    return std::make_exception_ptr(Stopped<PeerTimeout>(error, sentence));
  } catch (const QuorumLost& error) {
    return std::make_exception_ptr(Stopped<QuorumLost>(error, sentence));
  } catch (const OperationAborted& error) {
    return std::make_exception_ptr(Stopped<OperationAborted>(error, sentence));
  } catch (const OsError& error) {
    return std::make_exception_ptr(Stopped<OsError>(error, sentence));
  } catch (...) {
    return cause;
  }
}

}  // namespace tokenyard::collectives
